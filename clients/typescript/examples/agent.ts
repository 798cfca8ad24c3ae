/**
 * Prints the seq and the type of each event.
 *
 *     export SEQLINE_URL=http://127.0.0.1:8090 SEQLINE_TOKEN=...
 *     node dist/examples/agent.js invoices    # the name of the consumer; without one: default
 *
 * Ends in order at Ctrl-C or SIGTERM.
 */

import process from "node:process";

import { Agent, SeqlineError } from "seqline-agent";

const agent = new Agent({
  url: process.env["SEQLINE_URL"] ?? "",
  token: process.env["SEQLINE_TOKEN"] ?? "",
  consumer: process.argv[2] ?? "default",
  log: console.error,
});
for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, () => agent.stop());

try {
  await agent.run(
    async (event) => console.log(event.seq, event.type),
    async (lost) => console.log("lost", lost.reason, lost.position),
  );
} catch (error) {
  if (!(error instanceof SeqlineError)) throw error;
  console.error(`${error.name}: ${error.message}`);
  process.exitCode = 1;
}
