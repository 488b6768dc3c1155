// Pays once, in the application's own transaction: node pay.mjs URL KEY AMOUNT
//
// Prints what happened and what to answer: `fresh 201 {...}`, `replay 201 {...}`, or why not.
import { createRequire } from 'node:module'
import { join } from 'node:path'

// `pg` from here, or from the directory that SEMEL_LANGUAGES_NODE names.
const home = process.env.SEMEL_LANGUAGES_NODE ?? import.meta.dirname
const pg = createRequire(join(home, 'package.json'))('pg')

/** Runs the payment at most once per key. */
export async function pay(client, tenant, key, request) {
  await client.query('BEGIN')
  try {
    const { rows: [claim] } = await client.query(
      "SELECT decision, status, body, operation FROM semel_claim('shop', $1, 'pay', $2, $3)",
      [tenant, key, request],
    )
    if (claim.decision !== 'run') {
      await client.query('ROLLBACK')
      return claim
    }

    // The application's own statements: no call to another service belongs here.
    const { rows: [{ id }] } = await client.query(
      'INSERT INTO payment (tenant, request) VALUES ($1, $2) RETURNING id', [tenant, request])
    const body = Buffer.from(JSON.stringify({ payment: Number(id) }))
    await client.query("SELECT semel_enqueue('payments.made', $1, $2)", [`payment-${id}`, body])

    await client.query("SELECT semel_complete($1, 201, 'application/json', $2)", [claim.operation, body])
    // PostgreSQL answers a COMMIT after an error with ROLLBACK.
    const { command } = await client.query('COMMIT')
    if (command !== 'COMMIT') throw new Error('rolled back')
    return { decision: 'fresh', status: 201, body }
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}

const [url, key, amount] = process.argv.slice(2)
const client = new pg.Client({ connectionString: url })
await client.connect()
try {
  const { decision, status, body } = await pay(client, 'alice', key, Buffer.from(amount))
  console.log(decision, status ?? '-', body?.toString() ?? '-')
} finally {
  await client.end()
}
