package main

import (
	"bufio"
	"encoding/base64"
	"os"

	"github.com/hamba/avro/v2"
)

// decode reads Confluent's wire format: after the setting, whose topic is the schema's text, a value in base64 a line.
func decode(said setting) {
	schema, err := avro.Parse(said.Topic)
	must(err)
	_ = schema
	_ = bufio.NewReader(os.Stdin)
	_ = base64.StdEncoding
}
