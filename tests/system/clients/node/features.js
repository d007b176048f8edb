// What suite.js tries: feature -> function of a KafkaJS client and of a name for topic and group
// that nobody else uses.

const assert = require('node:assert/strict')
const { CompressionTypes, ConfigResourceTypes, ConfigSource } = require('kafkajs')

const LIMIT_MS = 60_000 // for anything that should happen at once
const TIME_MS = 1_700_000_000_000
const METADATA = 'sp\u00e4ter \u2713'

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const text = (messages) => messages.map((message) => message.value.toString())

async function waitUntil (isTrue, what) {
  const deadline = Date.now() + LIMIT_MS
  while (!isTrue()) {
    assert(Date.now() < deadline, `not within ${LIMIT_MS} ms: ${what}`)
    await sleep(20)
  }
}

async function administrating (client, use) {
  const admin = client.admin()
  await admin.connect()
  try {
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

// What applications and infrastructure tools set.
const configEntries = [
  { name: 'retention.ms', value: '604800000' },
  { name: 'retention.bytes', value: '1073741824' },
  { name: 'segment.bytes', value: '104857600' },
  { name: 'max.message.bytes', value: '1000000' }
]

function create (client, topic, numPartitions = 1) {
  const topics = [{ topic, numPartitions, replicationFactor: 1, configEntries }]
  return administrating(client, (admin) => admin.createTopics({ topics }))
}

async function partitionCount (client, topic) {
  const { topics } = await administrating(client, (admin) =>
    admin.fetchTopicMetadata({ topics: [topic] }))
  return topics[0].partitions.length
}

// Messages without a partition go to the first; settings are the producer's.
async function send (client, topic, messages, options = {}, settings = {}) {
  const producer = client.producer(settings)
  await producer.connect()
  try {
    const placed = messages.map((message) => ({ partition: 0, ...message }))
    return await producer.send({ topic, messages: placed, ...options })
  } finally {
    await producer.disconnect()
  }
}

function sendValues (client, topic, values, options, settings) {
  return send(client, topic, values.map((value) => ({ value })), options, settings)
}

// A running consumer of a group, with the messages it got and the partitions it has.
async function consuming (client, topic, use, { settings = {}, run = {} } = {}) {
  const consumer = client.consumer({ groupId: topic, ...settings })
  const state = { consumer, messages: [], share: [] }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    state.share = payload.memberAssignment[topic] ?? []
  })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ message }) => { state.messages.push(message) },
      ...run
    })
    return await use(state)
  } finally {
    await consumer.disconnect()
  }
}

function receive (client, topic, count) {
  return consuming(client, topic, (state) => received(state, count))
}

async function received (state, count) {
  await waitUntil(() => state.messages.length >= count, `${count} records`)
  assert.equal(state.messages.length, count)
  return state.messages
}

function waitForShares (count, ...states) {
  return waitUntil(() => states.every((state) => state.share.length === count),
    `every member has ${count} partitions`)
}

function checkDelayed (message, sentMs, dueMs) {
  const acceptedAt = Number(message.headers['x-accepted-at'])
  const dueAt = Number(message.headers['x-due-at'])
  assert(acceptedAt >= sentMs)
  // A delay counts from the end of the millisecond in which the record was accepted.
  const dueTimes = dueMs === undefined ? [acceptedAt + 300, acceptedAt + 301] : [dueMs]
  assert(dueTimes.includes(dueAt), `due at ${dueAt}, not ${dueTimes}`)
  assert(Date.now() >= dueAt, 'delivered too early')
}

async function withAcks (client, name, acks) {
  await create(client, name)
  await sendValues(client, name, ['one', 'two'], { acks })
  assert.deepEqual(text(await receive(client, name, 2)), ['one', 'two'])
}

async function withCodec (client, name, compression) {
  await create(client, name)
  const values = Array.from({ length: 100 }, (_, index) => `value ${index} `.repeat(50))
  const [answer] = await sendValues(client, name, values, { compression })
  assert.equal(answer.baseOffset, '0')
  assert.deepEqual(text(await receive(client, name, 100)), values)
}

// A topic with three records, and a group that has read them and left.
async function readInGroup (client, name) {
  await create(client, name)
  await sendValues(client, name, ['one', 'two', 'three'])
  await receive(client, name, 3)
}

const features = {
  async create_topic (client, name) {
    assert.equal(await create(client, name, 3), true)
    assert.equal(await partitionCount(client, name), 3)
    assert.equal(await create(client, name, 3), false)
  },

  async list_topics (client, name) {
    await create(client, name, 2)
    const topics = await administrating(client, (admin) => admin.listTopics())
    assert(topics.includes(name))
    assert.equal(await partitionCount(client, name), 2)
  },

  async auto_create (client, name) {
    await sendValues(client, name, ['first'])
    assert.equal(await partitionCount(client, name), 4)
  },

  async describe_cluster (client) {
    const shown = await administrating(client, (admin) => admin.describeCluster())
    assert.equal(shown.brokers.length, 1)
    assert.equal(shown.controller, shown.brokers[0].nodeId)
    assert(shown.clusterId)
  },

  acks_0: (client, name) => withAcks(client, name, 0),
  acks_1: (client, name) => withAcks(client, name, 1),
  acks_all: (client, name) => withAcks(client, name, -1),
  codec_gzip: (client, name) => withCodec(client, name, CompressionTypes.GZIP),
  codec_snappy: (client, name) => withCodec(client, name, CompressionTypes.Snappy),
  codec_lz4: (client, name) => withCodec(client, name, CompressionTypes.LZ4),
  codec_zstd: (client, name) => withCodec(client, name, CompressionTypes.ZSTD),

  async headers (client, name) {
    await create(client, name)
    const headers = { a: ['1', ''], b: Buffer.from([0, 255]) }
    await send(client, name, [{ value: 'value', headers }])
    const [message] = await receive(client, name, 1)
    assert.deepEqual(message.headers, {
      a: [Buffer.from('1'), Buffer.from('')],
      b: Buffer.from([0, 255])
    })
  },

  async idempotent (client, name) {
    await create(client, name)
    const values = Array.from({ length: 1000 }, (_, index) => `${index}`)
    const producer = client.producer({ idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    for (let begin = 0; begin < 1000; begin += 50) {
      const messages = values.slice(begin, begin + 50).map((value) => ({ value, partition: 0 }))
      const [answer] = await producer.send({ topic: name, messages })
      assert.equal(answer.baseOffset, `${begin}`)
    }
    await producer.disconnect()
    assert.deepEqual(text(await receive(client, name, 1000)), values)
  },

  async delay (client, name) {
    await create(client, name)
    const sentMs = Date.now()
    await send(client, name,
      [{ value: 'late', headers: { a: '1', 'x-delay': '300ms' } }, { value: 'now' }])
    const [first, late] = await receive(client, name, 2)
    assert.deepEqual(text([first, late]), ['now', 'late'])
    checkDelayed(late, sentMs)
  },

  async deliver_at (client, name) {
    await create(client, name)
    const sentMs = Date.now()
    const headers = { 'x-deliver-at': `${sentMs + 400}` }
    await send(client, name, [{ value: 'late', headers }])
    const [late] = await receive(client, name, 1)
    checkDelayed(late, sentMs, sentMs + 400)
  },

  async cancel (client, name) {
    await create(client, name)
    await send(client, name, [
      { value: 'cancelled', headers: { 'x-delay': '500ms', 'x-deliver-id': 'one' } },
      { value: '', headers: { 'x-deliver-cancel': 'one' } },
      { value: 'end', headers: { 'x-delay': '700ms' } }
    ])
    assert.deepEqual(text(await receive(client, name, 1)), ['end'])
  },

  async replace (client, name) {
    await create(client, name)
    await send(client, name, [
      { value: 'old', headers: { 'x-delay': '400ms', 'x-deliver-id': 'one' } },
      { value: 'new', headers: { 'x-delay': '500ms', 'x-deliver-id': 'one' } },
      { value: 'end', headers: { 'x-delay': '700ms' } }
    ])
    assert.deepEqual(text(await receive(client, name, 2)), ['new', 'end'])
  },

  async bad_delay (client, name) {
    await create(client, name)
    const bad = { value: 'bad', headers: { 'x-delay': 'soon' } }
    // Code 87 is newer than this client, which takes it for one that is worth no retry.
    await assert.rejects(send(client, name, [bad]), { code: 87 })
  },

  async seek (client, name) {
    await create(client, name)
    await sendValues(client, name, Array.from({ length: 10 }, (_, index) => `${index}`))
    await consuming(client, name, async (state) => {
      await received(state, 10)
      state.consumer.seek({ topic: name, partition: 0, offset: '7' })
      assert.deepEqual(text(await received(state, 13)).slice(10), ['7', '8', '9'])
    })
  },

  // The topic is there already: tests/support/harness/gap_scenario.py. Its gaps have empty batches.
  async gaps (client, name) {
    const places = (messages) => messages.map(({ offset, value }) => `${offset} ${value}`)
    const all = ['0 a', '1 b', '7 c', '8 d', '1009 after']
    await consuming(client, name, async (state) => {
      assert.deepEqual(places(await received(state, 4)), all.slice(0, 4))
      await sendValues(client, name, ['after'])
      assert.deepEqual(places(await received(state, 5)), all)
    })
    for (const offset of ['9', '500']) {
      await administrating(client, (admin) => admin.setOffsets(
        { groupId: name, topic: name, partitions: [{ partition: 0, offset }] }))
      assert.deepEqual(places(await receive(client, name, 1)), all.slice(4))
    }
  },

  async wait (client, name) {
    await create(client, name)
    await consuming(client, name, async (state) => {
      await waitForShares(1, state)
      await sleep(300)
      const sentMs = Date.now()
      await send(client, name, [{ value: 'late', headers: { 'x-delay': '300ms' } }])
      assert.deepEqual(text(await received(state, 1)), ['late'])
      assert(Date.now() - sentMs >= 300)
    })
  },

  async ends (client, name) {
    await create(client, name)
    await sendValues(client, name, ['one', 'two'])
    const [shown] = await administrating(client, (admin) => admin.fetchTopicOffsets(name))
    assert.deepEqual([shown.low, shown.high], ['0', '2'])
  },

  async offsets_by_time (client, name) {
    await create(client, name)
    const messages = Array.from({ length: 5 }, (_, index) =>
      ({ value: 'x', timestamp: `${TIME_MS + 1000 * index}` }))
    await send(client, name, messages)
    const [found] = await administrating(client, (admin) =>
      admin.fetchTopicOffsetsByTimestamp(name, TIME_MS + 2500))
    assert.equal(found.offset, '3')
  },

  async subscribe (client, name) {
    await create(client, name, 3)
    const messages = [0, 1, 2].map((partition) => ({ value: `${partition}`, partition }))
    await send(client, name, messages)
    assert.deepEqual(text(await receive(client, name, 3)).sort(), ['0', '1', '2'])
  },

  async commit (client, name) {
    await create(client, name, 2)
    await sendValues(client, name, Array(10).fill('x')) // it corrects an offset beyond the end
    const offset = { topic: name, partition: 0, offset: '5', metadata: METADATA }
    await consuming(client, name, async (state) => {
      await waitForShares(2, state)
      await state.consumer.commitOffsets([offset])
    }, { run: { autoCommit: false } })
    const [shown] = await administrating(client, (admin) =>
      admin.fetchOffsets({ groupId: name, topics: [name] }))
    const byPartition = shown.partitions.sort((one, other) => one.partition - other.partition)
    assert.deepEqual(byPartition[0], { partition: 0, offset: '5', metadata: METADATA })
    assert.equal(byPartition[1].offset, '-1')
  },

  async resume (client, name) {
    await readInGroup(client, name)
    await sendValues(client, name, ['four'])
    assert.deepEqual(text(await receive(client, name, 1)), ['four'])
  },

  async rebalance (client, name) {
    await create(client, name, 4)
    // By default it notices what happens in its group when a fetch ends, after up to 5 s.
    const settings = { maxWaitTimeInMs: 500, heartbeatInterval: 500 }
    await consuming(client, name, async (first) => {
      await waitForShares(4, first)
      await consuming(client, name, async (second) => {
        await waitForShares(2, first, second)
        assert.deepEqual([...first.share, ...second.share].sort(), [0, 1, 2, 3])
      }, { settings })
      await waitForShares(4, first)
    }, { settings })
  },

  async list_groups (client, name) {
    await create(client, name)
    await consuming(client, name, async (state) => {
      await waitForShares(1, state)
      const { groups } = await administrating(client, (admin) => admin.listGroups())
      const [one] = groups.filter(({ groupId }) => groupId === name)
      assert.equal(one.protocolType, 'consumer')
    })
  },

  async describe_group (client, name) {
    await create(client, name)
    await consuming(client, name, async (state) => {
      await waitForShares(1, state)
      const { groups } = await administrating(client, (admin) => admin.describeGroups([name]))
      assert.deepEqual([groups[0].state, groups[0].members.length], ['Stable', 1])
      const [member] = groups[0].members
      assert.deepEqual([member.clientId, member.clientHost], ['kafkajs', '/127.0.0.1'])
    })
  },

  async set_offsets (client, name) {
    await readInGroup(client, name)
    const partitions = [{ partition: 0, offset: '1' }]
    await administrating(client, (admin) =>
      admin.setOffsets({ groupId: name, topic: name, partitions }))
    assert.deepEqual(text(await receive(client, name, 2)), ['two', 'three'])
  },

  async delete_group (client, name) {
    await readInGroup(client, name)
    await administrating(client, async (admin) => {
      const [answer] = await admin.deleteGroups([name])
      assert.equal(answer.errorCode, 0)
      const { groups } = await admin.listGroups()
      assert(!groups.some(({ groupId }) => groupId === name))
    })
  },

  async create_partitions (client, name) {
    await create(client, name)
    const topicPartitions = [{ topic: name, count: 3 }]
    await administrating(client, (admin) => admin.createPartitions({ topicPartitions }))
    assert.equal(await partitionCount(client, name), 3)
    await send(client, name, [{ value: 'new', partition: 2 }])
    assert.deepEqual(text(await receive(client, name, 1)), ['new'])
  },

  async describe_configs (client, name) {
    await create(client, name)
    await administrating(client, async (admin) => {
      const { brokers } = await admin.describeCluster()
      const { resources } = await admin.describeConfigs({
        includeSynonyms: false,
        resources: [
          { type: ConfigResourceTypes.TOPIC, name },
          { type: ConfigResourceTypes.BROKER, name: `${brokers[0].nodeId}` }
        ]
      })
      assert.deepEqual(resources.map(({ errorCode }) => errorCode), [0, 0])
      const [policy] = resources[0].configEntries
        .filter(({ configName }) => configName === 'cleanup.policy')
      assert.equal(policy.configValue, 'delete')
      assert(resources[1].configEntries.length > 0)
    })
  },

  async alter_configs (client, name) {
    await create(client, name)
    const changed = [
      { name: 'retention.ms', value: '-1' },
      { name: 'retention.bytes', value: '2000000' },
      { name: 'max.message.bytes', value: '2000' }
    ]
    const type = ConfigResourceTypes.TOPIC
    await administrating(client, async (admin) => {
      const expectSettings = async (expected) => {
        const { resources: [{ configEntries }] } = await admin.describeConfigs({
          includeSynonyms: true,
          resources: [{ type, name, configNames: Object.keys(expected) }]
        })
        const shown = configEntries.map((entry) =>
          [entry.configName, [entry.configValue, entry.configSource]])
        assert.deepEqual(Object.fromEntries(shown), expected)
        assert(configEntries.every((entry) => entry.configSynonyms.length > 0))
      }
      const alter = (configEntries) =>
        admin.alterConfigs({ resources: [{ type, name, configEntries }] })
      const { TOPIC_CONFIG, DEFAULT_CONFIG } = ConfigSource
      await expectSettings(Object.fromEntries(configEntries.map(({ name, value }) =>
        [name, [value, TOPIC_CONFIG]])))
      await alter(changed)
      await expectSettings({
        'retention.ms': ['-1', TOPIC_CONFIG],
        'retention.bytes': ['2000000', TOPIC_CONFIG],
        'segment.bytes': ['1073741824', DEFAULT_CONFIG],
        'max.message.bytes': ['2000', TOPIC_CONFIG]
      })
      const invalid = alter([{ name: 'retention.ms', value: 'soon' }])
      await assert.rejects(invalid, { type: 'INVALID_CONFIG' })
    })
    const tooLarge = sendValues(client, name, ['x'.repeat(3000)])
    await assert.rejects(tooLarge, { type: 'MESSAGE_TOO_LARGE' })
  },

  async delete_records (client, name) {
    await create(client, name)
    await sendValues(client, name, ['0', '1', '2', '3', '4'])
    const partitions = [{ partition: 0, offset: '3' }]
    await administrating(client, async (admin) => {
      await admin.fetchTopicOffsets(name) // else this client does not know whom to ask
      await admin.deleteTopicRecords({ topic: name, partitions })
    })
    assert.deepEqual(text(await receive(client, name, 2)), ['3', '4'])
  },

  async delete_topic (client, name) {
    await create(client, name)
    await administrating(client, async (admin) => {
      await admin.deleteTopics({ topics: [name] })
      assert(!(await admin.listTopics()).includes(name))
    })
  }
}

module.exports = { features }
