package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
)

type byPartition struct{}

func (byPartition) Balance(msg kafka.Message, _ ...int) int { return msg.WriterData.(int) }

func produceKafkago(said setting, records []record) {
	acks := map[string]kafka.RequiredAcks{"all": kafka.RequireAll, "1": kafka.RequireOne, "0": kafka.RequireNone}[said.Acks]
	size := said.BatchRecords
	if size == 0 {
		size = 100
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(said.Bootstrap), Topic: said.Topic, Balancer: byPartition{}, RequiredAcks: acks,
		BatchSize: size, BatchTimeout: 20 * time.Millisecond, BatchBytes: 16 << 20,
		Compression: map[string]compress.Compression{
			"none": 0, "gzip": compress.Gzip, "snappy": compress.Snappy, "lz4": compress.Lz4, "zstd": compress.Zstd,
		}[said.Codec],
	}
	var waiting []kafka.Message
	flush := func() {
		must(writer.WriteMessages(context.Background(), waiting...))
		waiting = nil
	}
	for _, one := range records {
		if one.Do == "flush" {
			flush()
			continue
		}
		made := kafka.Message{Key: one.Key, Value: one.Value, WriterData: int(one.Partition)}
		if one.Time != nil {
			made.Time = time.UnixMilli(*one.Time)
		}
		for _, h := range one.Headers {
			made.Headers = append(made.Headers, kafka.Header{Key: string(h.Name), Value: h.Value})
		}
		waiting = append(waiting, made)
	}
	flush()
	must(writer.Close())
}

func consumeKafkago(said setting) {
	for partition, end := range said.Ends {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{said.Bootstrap}, Topic: said.Topic, Partition: partition, IsolationLevel: kafka.ReadCommitted,
			MaxBytes: 32 << 20, MaxWait: 500 * time.Millisecond,
		})
		for at := int64(0); at < end; {
			silent, stop := context.WithTimeout(context.Background(), 3*time.Second)
			r, err := reader.ReadMessage(silent)
			stop()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			must(err)
			at = r.Offset + 1
			time := r.Time.UnixMilli()
			one := record{Partition: int32(r.Partition), Offset: r.Offset, Time: &time, Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				one.Headers = append(one.Headers, header{[]byte(h.Key), h.Value})
			}
			tell(one)
		}
		must(reader.Close())
	}
}
