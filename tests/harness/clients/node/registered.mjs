// Records of a schema registry, by @kafkajs/confluent-schema-registry: `decode` or `encode`, a value in base64 or a document a line.
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'

const require = createRequire(process.cwd() + '/')
const { SchemaRegistry } = require('@kafkajs/confluent-schema-registry')
const lines = []
for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) if (line) lines.push(JSON.parse(line))
const [said, ...records] = lines
const registry = new SchemaRegistry({ host: said.registry })
const shown = (_, value) => (typeof value === 'bigint' ? Number(value) : value)
if (process.argv[2] === 'decode') {
  for (const one of records) process.stdout.write(JSON.stringify(await registry.decode(Buffer.from(one, 'base64')), shown) + '\n')
} else {
  for (const one of records) process.stdout.write(JSON.stringify((await registry.encode(said.id, one)).toString('base64')) + '\n')
}
process.exit(0)
