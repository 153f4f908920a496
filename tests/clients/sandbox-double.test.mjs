// The vendor's own libraries, of three majors and unmodified, judge the sandbox double. Their address is fixed, so the
// calls of this process to it, and no others, are led to the double.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import * as first from "vercel-sandbox-1";
import * as second from "vercel-sandbox-2";
import * as third from "vercel-sandbox-3";
import { startSandboxDouble } from "./harness.mjs";

const VENDOR = "https://vercel.com/api";
const who = { token: "vercel-double-token", teamId: "team_double", projectId: "prj_double" };
const LONG = `${"folder".repeat(15)}/${"name".repeat(12)}.txt`;
const NAMES = ["a.txt", "new/folder/b.txt", LONG, "größe 日本.txt"];

let double;
const wide = globalThis.fetch;
before(async () => {
  double = await startSandboxDouble();
  globalThis.fetch = (url, init) => {
    const target = String(url);
    if (!target.startsWith(VENDOR)) return wide(url, init);
    // The library's own dispatcher belongs to its own version of undici.
    const { dispatcher, ...rest } = init;
    return wide(double.url + target.slice(VENDOR.length), rest);
  };
});
after(async () => {
  globalThis.fetch = wide;
  await double.stop();
});
afterEach(async () => assert.deepEqual(await double.failures(), []));

/** Calls of the double since the last question, as `METHOD path`. */
async function calls(from = 0) {
  return (await double.calls()).slice(from).map(({ method, target }) => `${method} ${target.split("?")[0]}`);
}

/** What every generation does with files and commands. */
async function filesAndCommands(sandbox) {
  await sandbox.writeFiles(NAMES.map((path) => ({ path, content: Buffer.from(`content of ${path}`) })));
  for (const path of NAMES) {
    assert.equal((await sandbox.readFileToBuffer({ path }))?.toString(), `content of ${path}`);
  }
  assert.equal(await sandbox.readFileToBuffer({ path: "absent.txt" }), null);
  await sandbox.mkDir("made");
  await assert.rejects(sandbox.mkDir("made"), /400/);
  const finished = await sandbox.runCommand({
    cmd: "sh", args: ["-c", "echo größe 日本 $WORD; echo wrong >&2; exit 3"], env: { WORD: "there" },
  });
  assert.equal(finished.exitCode, 3);
  assert.equal(await finished.stdout(), "größe 日本 there\n");
  assert.equal(await finished.stderr(), "wrong\n");
  const detached = await sandbox.runCommand({ cmd: "sh", args: ["-c", "echo begun; exec sleep 60"], detached: true });
  for await (const line of detached.logs()) {
    assert.deepEqual({ stream: line.stream, data: line.data }, { stream: "stdout", data: "begun\n" });
    break;
  }
  await detached.kill("SIGTERM");
  assert.equal((await detached.wait()).exitCode, 143);
}

test("1.10.0: a VM lives, is kept, and starts again from what was kept", async () => {
  const { Sandbox, Snapshot } = first;
  const sandbox = await Sandbox.create({
    ...who, ports: [3000], timeout: 300_000, networkPolicy: { allow: { "example.com": [{ transform: [{ headers: { a: "b" } }] }] } },
  });
  assert.match(sandbox.domain(3000), /^https:\/\/.+\.vercel\.run$/);
  await filesAndCommands(sandbox);
  await sandbox.extendTimeout(60_000);
  assert.equal(sandbox.timeout, 360_000);
  await sandbox.updateNetworkPolicy("deny-all");
  const snapshot = await sandbox.snapshot();
  await assert.rejects(sandbox.runCommand("true"), /410/);
  const again = await Sandbox.create({ ...who, source: { type: "snapshot", snapshotId: snapshot.snapshotId } });
  assert.equal((await again.readFileToBuffer({ path: "a.txt" })).toString(), "content of a.txt");
  await again.stop({ blocking: true });
  assert.equal((await Sandbox.get({ ...who, sandboxId: again.sandboxId })).status, "stopped");
  const page = await Sandbox.list({ ...who, limit: 1 });
  const rest = await Sandbox.list({ ...who, limit: 1, until: page.json.pagination.next });
  assert.deepEqual([page, rest].map(({ json }) => json.sandboxes.map(({ id }) => id)), [[again.sandboxId], [sandbox.sandboxId]]);
  assert.deepEqual((await Snapshot.list({ ...who })).json.snapshots.map(({ id }) => id), [snapshot.snapshotId]);
  await snapshot.delete();
  assert.equal((await Snapshot.get({ ...who, snapshotId: snapshot.snapshotId })).status, "deleted");
  assert.equal(await double.running(), 0);
});

for (const [version, library, creation] of [["2.9.2", second, "/v2/sandboxes"], ["3.5.0", third, "/v3/sandboxes"]]) {
  describe(version, () => {
    const name = `box ${version}/1`;

    test("a name outlives its VMs, is forked and deleted", async () => {
      const { Sandbox, Snapshot } = library;
      const from = (await double.calls()).length;
      const sandbox = await Sandbox.create({
        ...who, name, tags: { cluster: version }, snapshotExpiration: 0,
        networkPolicy: { allow: { "example.com": [{ transform: [{ headers: { a: "b" } }] }] }, subnets: { deny: ["10.0.0.0/8"] } },
      });
      assert.deepEqual(await calls(from), [`POST ${creation}`]);
      await filesAndCommands(sandbox);
      await sandbox.extendTimeout(60_000);
      await sandbox.stop();
      assert.equal((await Sandbox.get({ ...who, name })).status, "stopped");
      let resumes = 0;
      const later = await Sandbox.get({ ...who, name, onResume: async () => { resumes += 1; } });
      const [read, run] = await Promise.all([
        later.readFileToBuffer({ path: "a.txt" }),
        later.runCommand("cat", ["new/folder/b.txt"]),
      ]);
      assert.equal(read.toString(), "content of a.txt");
      assert.equal(await run.stdout(), "content of new/folder/b.txt");
      assert.equal(resumes, 1);
      await later.update({ timeout: 600_000, tags: { cluster: version, more: "1" } });
      await later.updateNetworkPolicy?.("deny-all");
      const snapshot = await later.snapshot();
      const fork = await Sandbox.fork({ ...who, sourceSandbox: name, name: `fork ${version}` });
      assert.equal((await fork.readFileToBuffer({ path: "a.txt" })).toString(), "content of a.txt");
      const names = [];
      for await (const one of await Sandbox.list({ ...who, limit: 1, tags: { cluster: version } })) names.push(one.name);
      assert.deepEqual(names, [`fork ${version}`, name]);
      const kept = [];
      for await (const one of await Snapshot.list({ ...who, name })) kept.push(one.id);
      assert.equal(kept[0], snapshot.snapshotId);
      assert.equal(kept.length, 2);
      await fork.delete();
      await later.delete();
      await assert.rejects(Sandbox.get({ ...who, name }), /404/);
      assert.equal(await double.running(), 0);
    });

    test("a VM whose time is over is resumed with its files", async () => {
      const { Sandbox } = library;
      const sandbox = await Sandbox.create({ ...who, name: `short ${version}`, timeout: 60_000 });
      await sandbox.writeFiles([{ path: "kept.txt", content: "kept" }]);
      await double.advance(60_000);
      assert.equal((await sandbox.readFileToBuffer({ path: "kept.txt" })).toString(), "kept");
      await sandbox.delete();
    });

    test("getOrCreate takes what is there", async () => {
      const { Sandbox } = library;
      const one = await Sandbox.getOrCreate({ ...who, name: `one ${version}` });
      const two = await Sandbox.getOrCreate({ ...who, name: `one ${version}` });
      assert.equal(one.name, two.name);
      assert.equal(await double.running(), 1);
      await one.delete();
    });

    test("output in small pieces and a service that fails once change nothing", async () => {
      const { Sandbox } = library;
      const sandbox = await Sandbox.create({ ...who, name: `cut ${version}` });
      await double.script({ method: "POST", path: "/cmd", action: { do: "pieces", bytes: 7 } });
      assert.equal((await sandbox.runCommand("echo", ["plain"])).exitCode, 0);
      await double.script({ method: "POST", path: "/fs/read", action: { do: "status", status: 503 } });
      assert.equal(await sandbox.readFileToBuffer({ path: "absent" }), null);
      await sandbox.delete();
    });
  });
}
