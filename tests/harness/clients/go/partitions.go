package main

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// partitions tells where keys go: by franz's and sarama's defaults, and by the balancer of kafkago that is named after the hash.
func partitions(said setting, records []record) {
	count := said.Partitions
	places := make([]int, count)
	for i := range places {
		places[i] = i
	}
	franz := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	hashed := sarama.NewHashPartitioner("t")
	for _, one := range records {
		switch said.Client {
		case "franz":
			fmt.Println(franz.Partition(&kgo.Record{Key: one.Key}, count))
		case "sarama":
			at, err := hashed.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(one.Key)}, int32(count))
			must(err)
			fmt.Println(at)
		case "kafkago":
			fmt.Println(kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: one.Key}, places...))
		}
	}
}
