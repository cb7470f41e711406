package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

func franzCodec(said setting) kgo.CompressionCodec {
	codec := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[said.Codec]
	if said.Level != nil {
		codec = codec.WithLevel(*said.Level)
	}
	return codec
}

func produceFranz(said setting, records []record) {
	options := []kgo.Opt{
		kgo.SeedBrokers(said.Bootstrap), kgo.DefaultProduceTopic(said.Topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(franzCodec(said)), kgo.ProducerLinger(20 * time.Millisecond),
	}
	if said.BatchBytes > 0 {
		options = append(options, kgo.ProducerBatchMaxBytes(int32(said.BatchBytes)))
	}
	if said.Protocol != "" {
		options = append(options, kgo.MaxVersions(kversion.FromString(said.Protocol)))
	}
	switch {
	case said.Transactional != "":
		timeout := time.Duration(said.TimeoutMs) * time.Millisecond
		options = append(options, kgo.TransactionalID(said.Transactional), kgo.TransactionTimeout(timeout))
	case !said.Idempotent:
		acks := map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}[said.Acks]
		options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(acks))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	defer client.Close()
	context := context.Background()
	sent := 0
	for _, one := range records {
		switch one.Do {
		case "begin":
			must(client.BeginTransaction())
		case "commit", "abort":
			must(client.Flush(context))
			must(client.EndTransaction(context, kgo.TransactionEndTry(one.Do == "commit")))
		case "flush":
			must(client.Flush(context))
		default:
			made := &kgo.Record{Partition: one.Partition, Key: one.Key, Value: one.Value}
			if one.Time != nil {
				made.Timestamp = time.UnixMilli(*one.Time)
			}
			for _, h := range one.Headers {
				made.Headers = append(made.Headers, kgo.RecordHeader{Key: string(h.Name), Value: h.Value})
			}
			client.Produce(context, made, func(_ *kgo.Record, err error) { must(err) })
			sent++
			if said.BatchRecords > 0 && sent%said.BatchRecords == 0 {
				must(client.Flush(context))
			}
		}
	}
	must(client.Flush(context))
}

func consumeFranz(said setting) {
	offsets := map[int32]kgo.Offset{}
	for partition := range said.Ends {
		offsets[int32(partition)] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(said.Bootstrap), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{said.Topic: offsets}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
	)
	must(err)
	defer client.Close()
	rest := left{said.Ends, make([]int64, len(said.Ends))}
	deadline, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	for !rest.done() && deadline.Err() == nil {
		client.PollFetches(deadline).EachRecord(func(r *kgo.Record) {
			rest.at[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				return
			}
			time := r.Timestamp.UnixMilli()
			one := record{Partition: r.Partition, Offset: r.Offset, Time: &time, Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				one.Headers = append(one.Headers, header{[]byte(h.Key), h.Value})
			}
			tell(one)
		})
	}
}
