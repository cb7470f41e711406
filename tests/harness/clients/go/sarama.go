package main

import (
	"time"

	"github.com/IBM/sarama"
)

func saramaConfig(said setting) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	if said.Protocol != "" {
		version, err := sarama.ParseKafkaVersion(said.Protocol)
		must(err)
		config.Version = version
	}
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = 16 << 20
	return config
}

func produceSarama(said setting, records []record) {
	config := saramaConfig(said)
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[said.Codec]
	if said.Level != nil {
		config.Producer.CompressionLevel = *said.Level
	}
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{
		"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse,
	}[said.Acks]
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Producer.Flush.MaxMessages = said.BatchRecords
	if said.Idempotent || said.Transactional != "" {
		config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
		config.Producer.RequiredAcks = sarama.WaitForAll
	}
	if said.Transactional != "" {
		config.Producer.Transaction.ID = said.Transactional
		config.Producer.Transaction.Timeout = time.Duration(said.TimeoutMs) * time.Millisecond
	}
	producer, err := sarama.NewSyncProducer([]string{said.Bootstrap}, config)
	must(err)
	var waiting []*sarama.ProducerMessage
	flush := func() {
		if len(waiting) > 0 {
			must(producer.SendMessages(waiting))
		}
		waiting = nil
	}
	for _, one := range records {
		switch one.Do {
		case "begin":
			must(producer.BeginTxn())
		case "commit":
			flush()
			must(producer.CommitTxn())
		case "abort":
			flush()
			must(producer.AbortTxn())
		case "flush":
			flush()
		default:
			made := &sarama.ProducerMessage{Topic: said.Topic, Partition: one.Partition}
			if one.Key != nil {
				made.Key = sarama.ByteEncoder(one.Key)
			}
			if one.Value != nil {
				made.Value = sarama.ByteEncoder(one.Value)
			}
			if one.Time != nil {
				made.Timestamp = time.UnixMilli(*one.Time)
			}
			for _, h := range one.Headers {
				made.Headers = append(made.Headers, sarama.RecordHeader{Key: h.Name, Value: h.Value})
			}
			waiting = append(waiting, made)
		}
	}
	flush()
}

func consumeSarama(said setting) {
	config := saramaConfig(said)
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer([]string{said.Bootstrap}, config)
	must(err)
	for partition, end := range said.Ends {
		reading, err := consumer.ConsumePartition(said.Topic, int32(partition), sarama.OffsetOldest)
		must(err)
		// The client shows no control records, so its position is not known: silence is the end.
		for at := int64(0); at < end; {
			select {
			case r := <-reading.Messages():
				at = r.Offset + 1
				time := r.Timestamp.UnixMilli()
				one := record{Partition: r.Partition, Offset: r.Offset, Time: &time, Key: r.Key, Value: r.Value}
				for _, h := range r.Headers {
					one.Headers = append(one.Headers, header{h.Key, h.Value})
				}
				tell(one)
			case <-time.After(3 * time.Second):
				at = end
			}
		}
	}
}
