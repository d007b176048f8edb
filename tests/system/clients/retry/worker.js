// A worker with KafkaJS: node worker.js ADDRESS TOPIC GROUP COUNT work|crash
//
// work.py says what it does. Run it where NODE_PATH has KafkaJS and retry_later.js.

const { Kafka, logLevel } = require('kafkajs')
const { handleOrRetry } = require('retry_later')

const LIMIT_MS = 60_000
const CRASHED = 3

const hex = (octets) => octets === null ? null : octets.toString('hex')

function show ({ topic, partition, message }) {
  const headers = []
  for (const [name, values] of Object.entries(message.headers)) {
    for (const one of [values].flat()) headers.push([name, hex(one)])
  }
  const place = [topic, partition, Number(message.offset)]
  const shown = { place, key: hex(message.key), value: hex(message.value), headers }
  process.stdout.write(JSON.stringify(shown) + '\n')
}

async function handle (record) {
  show(record)
  const { fails, 'x-retry-attempt': attempt = '0' } = record.message.headers
  if (Number(attempt) < Number(fails)) {
    throw new Error(`attempt ${attempt} \u2713 ${'.'.repeat(2_000)}`)
  }
}

async function main () {
  const [address, topic, group, count, mode] = process.argv.slice(2)
  const kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING })
  const producer = kafka.producer()
  const consumer = kafka.consumer({
    groupId: group, sessionTimeout: 3_000, heartbeatInterval: 300, maxWaitTimeInMs: 50
  })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [topic, `${group}.retry`], fromBeginning: true })
  let left = Number(count)
  const crashing = { commitOffsets: () => process.exit(CRASHED) }
  const committing = mode === 'crash' ? crashing : consumer
  const done = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${left} records are left`)), LIMIT_MS).unref()
    consumer.run({
      autoCommit: false,
      eachMessage: async (record) => {
        await handleOrRetry(committing, producer, group, record, handle).catch((error) => {
          reject(error)
          throw error
        })
        left -= 1
        if (left === 0) resolve()
      }
    }).catch(reject)
  })
  await done
  await consumer.disconnect()
  await producer.disconnect()
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(String(error.stack) + '\n')
  process.exit(1)
})
