// The features, tried with KafkaJS: node suite.js ADDRESS [FEATURE ...]
//
// For each feature it writes one line of JSON to standard output: `feature`, `ok`, `detail` (what
// went wrong) and `seconds`. Run it where node_modules has what package.json names.

const kafkajs = require('kafkajs')
const { features } = require('./features.js')
const lz4 = require('lz4js')
const snappy = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')

// Features at a time: most of them wait most of the time, here for a fetch that they cannot end.
const WORKER_COUNT = 20

function addCodecs () {
  const { CompressionCodecs, CompressionTypes } = kafkajs
  const codec = (compress, decompress) => () => ({
    compress: async (encoder) => Buffer.from(compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(decompress(buffer))
  })
  CompressionCodecs[CompressionTypes.Snappy] = snappy
  CompressionCodecs[CompressionTypes.LZ4] = codec(lz4.compress, lz4.decompress)
  CompressionCodecs[CompressionTypes.ZSTD] = codec((data) => zstd.compress(data), zstd.decompress)
}

async function tryOne (client, name) {
  const begin = Date.now()
  let detail = ''
  try {
    await features[name](client, `kafkajs-${name}`.replaceAll('_', '-'))
  } catch (error) {
    detail = String(error.stack) + (error.cause ? `\ncaused by ${error.cause}` : '')
  }
  const seconds = (Date.now() - begin) / 1000
  process.stdout.write(JSON.stringify({ feature: name, ok: !detail, detail, seconds }) + '\n')
}

async function main () {
  await zstd.init()
  addCodecs()
  const [address, ...asked] = process.argv.slice(2)
  const client = new kafkajs.Kafka({ brokers: [address], logLevel: kafkajs.logLevel.NOTHING })
  const names = asked.length ? asked : Object.keys(features)
  const work = async () => {
    while (names.length) await tryOne(client, names.shift())
  }
  await Promise.all(Array.from({ length: WORKER_COUNT }, work))
}

main().then(() => process.exit(0))
