// Producers and readers of Go: franz, sarama, kafkago.
//
//	clients produce|consume|partitions < script > records
//
// The first line of the script is a setting, each further one a record or {"do": "begin" | "commit" | "abort" | "flush"}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

type setting struct {
	Client        string  `json:"client"`
	Bootstrap     string  `json:"bootstrap"`
	Topic         string  `json:"topic"`
	Codec         string  `json:"codec"`
	Level         *int    `json:"level"`
	Acks          string  `json:"acks"`
	Idempotent    bool    `json:"idempotent"`
	Transactional string  `json:"transactional"`
	TimeoutMs     int     `json:"timeout_ms"`
	BatchRecords  int     `json:"batch_records"`
	BatchBytes    int     `json:"batch_bytes"`
	Protocol      string  `json:"protocol"`
	Ends          []int64 `json:"ends"`
	Partitions    int     `json:"partitions"`
}

type header struct {
	Name  []byte `json:"n"`
	Value []byte `json:"v"`
}

type record struct {
	Do        string   `json:"do,omitempty"`
	Partition int32    `json:"p"`
	Offset    int64    `json:"o"`
	Time      *int64   `json:"t"`
	Key       []byte   `json:"k"`
	Value     []byte   `json:"v"`
	Headers   []header `json:"h"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func script() (setting, []record) {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	reading := json.NewDecoder(in)
	var said setting
	must(reading.Decode(&said))
	var records []record
	for reading.More() {
		var one record
		must(reading.Decode(&one))
		records = append(records, one)
	}
	return said, records
}

var out = json.NewEncoder(os.Stdout)

func tell(one record) { must(out.Encode(one)) }

// left counts down what is still to be read: positions by partition against the ends.
type left struct {
	ends []int64
	at   []int64
}

func (l *left) done() bool {
	for i := range l.ends {
		if l.at[i] < l.ends[i] {
			return false
		}
	}
	return true
}

func main() {
	said, records := script()
	producers := map[string]func(setting, []record){"franz": produceFranz, "sarama": produceSarama, "kafkago": produceKafkago}
	consumers := map[string]func(setting){"franz": consumeFranz, "sarama": consumeSarama, "kafkago": consumeKafkago}
	switch os.Args[1] {
	case "produce":
		producers[said.Client](said, records)
	case "consume":
		consumers[said.Client](said)
	case "decode":
		decode(said, records)
	case "partitions":
		partitions(said, records)
	}
}
