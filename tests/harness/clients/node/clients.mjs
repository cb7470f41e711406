// Producers and readers of Node: kafkajs, platformatic; by the script that the Go clients read.
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'

const require = createRequire(process.cwd() + '/')
const lines = []
for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) if (line) lines.push(JSON.parse(line))
const [said, ...records] = lines
const bytes = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const text = (found) => (found === null || found === undefined ? null : Buffer.from(found).toString('base64'))
const tell = (one) => process.stdout.write(JSON.stringify(one) + '\n')

function pieces (found, size) {
  const made = []
  for (let at = 0; at < found.length; at += size) made.push(found.slice(at, at + size))
  return made
}

async function kafkajs (role) {
  const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
  CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
  const kafka = new Kafka({ brokers: [said.bootstrap], logLevel: logLevel.ERROR })
  if (role === 'consume') return await kafkajsReads(kafka)
  const codec = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }[said.codec]
  const acks = { all: -1, 1: 1, 0: 0 }[said.acks ?? 'all']
  const transactional = said.transactional || undefined
  const settings = { createPartitioner: () => ({ message }) => message.partition, allowAutoTopicCreation: false }
  if (said.idempotent || transactional) Object.assign(settings, { idempotent: true, maxInFlightRequests: 1 })
  if (transactional) Object.assign(settings, { transactionalId: transactional, transactionTimeout: said.timeout_ms })
  const producer = kafka.producer(settings)
  await producer.connect()
  let waiting = []
  let transaction
  const flush = async () => {
    for (const messages of pieces(waiting, said.batch_records || 500)) {
      await (transaction ?? producer).send({ topic: said.topic, compression: codec, acks, messages })
    }
    waiting = []
  }
  for (const one of records) {
    if (one.do === 'begin') transaction = await producer.transaction()
    else if (one.do === 'commit' || one.do === 'abort') {
      await flush()
      await transaction[one.do]()
      transaction = undefined
    } else if (one.do === 'flush') await flush()
    else {
      const headers = {}
      for (const h of one.h ?? []) {
        const name = bytes(h.n).toString()
        headers[name] = name in headers ? [headers[name], bytes(h.v)].flat() : bytes(h.v)
      }
      const message = { partition: one.p, key: bytes(one.k), value: bytes(one.v), headers }
      if (one.t !== null && one.t !== undefined) message.timestamp = String(one.t)
      waiting.push(message)
    }
  }
  await flush()
  await producer.disconnect()
}

async function kafkajsReads (kafka) {
  const consumer = kafka.consumer({ groupId: 'reader-' + said.topic + Date.now(), readUncommitted: false, allowAutoTopicCreation: false })
  await consumer.connect()
  await consumer.subscribe({ topics: [said.topic], fromBeginning: true })
  let heard = Date.now() + 8_000
  await consumer.run({
    eachMessage: async ({ partition, message: r }) => {
      heard = Date.now()
      const headers = Object.entries(r.headers ?? {}).flatMap(([n, v]) => [v].flat().map((each) => ({ n: text(Buffer.from(n)), v: text(each) })))
      tell({ p: partition, o: Number(r.offset), t: Number(r.timestamp), k: text(r.key), v: text(r.value), h: headers })
    }
  })
  while (Date.now() - heard < 3_000) await new Promise((resolve) => setTimeout(resolve, 100))
  await consumer.disconnect()
}

async function platformatic (role) {
  const { Producer } = await import(require.resolve('@platformatic/kafka'))
  if (role === 'consume') throw new Error('not a reader here')
  const producer = new Producer({
    clientId: 'clients', bootstrapBrokers: [said.bootstrap], compression: said.codec, autocreateTopics: false,
    acks: { all: -1, 1: 1, 0: 0 }[said.acks ?? 'all'], idempotent: said.idempotent === true || Boolean(said.transactional),
    ...(said.transactional ? { transactionalId: said.transactional } : {})
  })
  let waiting = []
  let transaction
  const flush = async () => {
    for (const messages of pieces(waiting, said.batch_records || 500)) await (transaction ?? producer).send({ messages })
    waiting = []
  }
  for (const one of records) {
    if (one.do === 'begin') transaction = await producer.beginTransaction()
    else if (one.do === 'commit' || one.do === 'abort') {
      await flush()
      await transaction[one.do]()
      transaction = undefined
    } else if (one.do === 'flush') await flush()
    else {
      const headers = new Map((one.h ?? []).map((h) => [bytes(h.n), bytes(h.v)]))
      const message = { topic: said.topic, partition: one.p, key: bytes(one.k) ?? undefined, value: bytes(one.v) ?? undefined, headers }
      if (one.t !== null && one.t !== undefined) message.timestamp = BigInt(one.t)
      waiting.push(message)
    }
  }
  await flush()
  await producer.close()
}

if (process.argv[2] === 'partitions') {
  const metadata = Array.from({ length: said.partitions }, (_, partitionId) => ({ partitionId, leader: 1 }))
  const partition = require('kafkajs').Partitioners.DefaultPartitioner()
  for (const one of records) tell(partition({ topic: 't', partitionMetadata: metadata, message: { key: bytes(one.k) } }))
  process.exit(0)
}
await { kafkajs, platformatic }[said.client](process.argv[2])
process.exit(0)
