package main

import (
	"context"

	"github.com/hamba/avro/v2/registry"
)

// decode tells the documents of Avro in Confluent's form, by hamba's client of a registry, whose address stands for the brokers'.
func decode(said setting, records []record) {
	client, err := registry.NewClient(said.Bootstrap)
	must(err)
	decoder := registry.NewDecoder(client)
	for _, one := range records {
		var found any
		must(decoder.Decode(context.Background(), one.Value, &found))
		must(out.Encode(found))
	}
}
