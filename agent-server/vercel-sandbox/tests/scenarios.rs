//! The life of sandboxes of both generations against the double: the scenarios that the vendor's libraries pass too.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;

use common::{HOME, World, told};
use vercel_sandbox::{
    CommandRequest, Create, File, ListQuery, Machine, NetworkPolicy, Source, Status, Subnets, Update,
};

fn shell(script: &str) -> CommandRequest {
    CommandRequest::new("sh", ["-c", script])
}

/// Names in each form that the archive has: short, long, beyond ASCII, with a newline.
fn files() -> Vec<File> {
    let long = format!("{}/{}.txt", "folder".repeat(15), "name".repeat(12));
    let names = ["a.txt", "new/folder/b.txt", long.as_str(), "größe 日本.txt", "two\nlines.txt"];
    let mut files: Vec<File> = names.iter().map(|name| File::new(*name, format!("content of {name}"))).collect();
    files.push(File { mode: 0o755, ..File::new("run.sh", "#!/bin/sh\necho it runs\n") });
    files
}

async fn files_and_commands_work(machine: &Machine) {
    machine.write_files(HOME, &files()).await.unwrap();
    for file in files() {
        let read = machine.read_file(&file.path, 1000).await.unwrap();
        assert_eq!(read, Some(file.content), "{}", file.path);
    }
    assert_eq!(machine.read_file("absent.txt", 1000).await.unwrap(), None);
    assert_eq!(machine.read_file("a.txt", 3).await.unwrap_err().reason(), "TooLarge");
    machine.make_folder("made").await.unwrap();
    assert!(machine.make_folder("made").await.unwrap_err().is_status(400));
    let mut run = machine.run(&shell("./run.sh; echo wrong >&2; ls -d made; exit 3")).await.unwrap();
    assert_eq!(told(run.collect().await.unwrap()), ("it runs\nmade\n".to_owned(), "wrong\n".to_owned(), Some(3)));
    assert_eq!(run.next().await.unwrap(), None);
    let started = machine.start(&shell("echo begun; exec sleep 60")).await.unwrap();
    assert_eq!(started.exit_code, None);
    machine.kill(&started.id, 15).await.unwrap();
    assert_eq!(machine.wait(&started.id).await.unwrap().exit_code, Some(143));
    let env = BTreeMap::from([("WORD".to_owned(), "secret-word".into())]);
    let request = CommandRequest { env, cwd: Some("/vercel".to_owned()), ..shell("echo $WORD; basename $PWD") };
    assert!(!format!("{request:?}").contains("secret-word"));
    let mut run = machine.run(&request).await.unwrap();
    assert_eq!(told(run.collect().await.unwrap()).0, "secret-word\nvercel\n");
}

fn policy() -> NetworkPolicy {
    let headers = BTreeMap::from([("authorization".to_owned(), "injected-secret".into())]);
    NetworkPolicy::Only {
        domains: BTreeMap::from([("example.com".to_owned(), headers), ("*.org".to_owned(), BTreeMap::new())]),
        subnets: Subnets { allow: Vec::new(), deny: vec!["10.0.0.0/8".to_owned()] },
    }
}

fn answered_policy() -> serde_json::Value {
    serde_json::json!({
        "mode": "custom",
        "allowedDomains": ["*.org", "example.com"],
        "deniedCIDRs": ["10.0.0.0/8"],
        "injectionRules": [{"domain": "example.com", "headerNames": ["authorization"]}],
    })
}

#[tokio::test]
async fn a_stable_sandbox_lives_and_its_snapshot_starts_another() {
    let world = World::new().await;
    let stable = world.client.stable();
    let create = Create { ports: vec![3000], network_policy: Some(policy()), ..Create::default() };
    let (machine, session, routes) = stable.create(&create).await.unwrap();
    assert_eq!((session.status, routes.len(), routes[0].port), (Status::Running, 1, 3000));
    assert_eq!(session.network_policy, Some(answered_policy()));
    files_and_commands_work(&machine).await;
    let extended = machine.extend(60_000).await.unwrap();
    assert_eq!(extended.deadline(), session.deadline() + 60_000);
    machine.set_network_policy(&NetworkPolicy::DenyAll).await.unwrap();
    let (snapshot, stopped) = machine.snapshot(0).await.unwrap();
    assert_eq!((stopped.status, snapshot.expires_at), (Status::Stopped, None));
    assert!(machine.run(&shell("true")).await.unwrap_err().asks_for_resume());
    let source = Some(Source::Snapshot { snapshot_id: snapshot.id.clone() });
    let (second, _, _) = stable.create(&Create { source, ..Create::default() }).await.unwrap();
    assert_eq!(second.read_file("a.txt", 1000).await.unwrap().unwrap(), "content of a.txt");
    assert_eq!(second.stop().await.unwrap().session.status, Status::Stopping);
    assert_eq!(second.get().await.unwrap().0.status, Status::Stopped);
    assert_eq!(second.stop().await.unwrap().session.status, Status::Stopped);
    let first = stable.list(1, None).await.unwrap();
    let rest = stable.list(1, first.next).await.unwrap();
    let listed: Vec<&str> = first.items.iter().chain(&rest.items).map(|session| session.id.as_str()).collect();
    assert_eq!((listed, rest.next), (vec![second.id(), machine.id()], None));
    assert_eq!(stable.snapshots(10, None).await.unwrap().items, vec![stable.snapshot(&snapshot.id).await.unwrap()]);
    assert_eq!(stable.delete_snapshot(&snapshot.id).await.unwrap().status, "deleted");
    assert_eq!(world.double().running(), 0);
    world.no_rule_was_broken();
}

#[tokio::test]
async fn a_durable_sandbox_keeps_its_files_over_stops_forks_and_is_deleted() {
    let world = World::new().await;
    let persistent = world.client.persistent();
    let tags = BTreeMap::from([("cluster".to_owned(), "c1".to_owned())]);
    let create = Create {
        name: Some("my box/1".to_owned()),
        tags: tags.clone(),
        snapshot_expiration: Some(0),
        keep_last_snapshots: Some(2),
        network_policy: Some(policy()),
        ..Create::default()
    };
    let durable = persistent.get_or_create(&create).await.unwrap();
    assert_eq!(durable.first.network_policy, Some(answered_policy()));
    files_and_commands_work(&durable.machine().await).await;
    let stopped = durable.stop().await.unwrap();
    assert_eq!((stopped.session.status, stopped.snapshot.is_some()), (Status::Stopped, true));
    let again = persistent.get("my box/1", false).await.unwrap();
    assert_eq!((again.sandbox.status, again.resumed), (Status::Stopped, false));
    let mut run = durable.run(&shell("cat a.txt")).await.unwrap();
    assert_eq!(told(run.collect().await.unwrap()).0, "content of a.txt");
    assert_ne!(durable.machine().await.id(), durable.first.id);
    durable.stop().await.unwrap();
    let copy = Create { name: Some("copy".to_owned()), ..Create::default() };
    let copy = persistent.fork("my box/1", &copy).await.unwrap();
    assert_eq!(copy.read_file("a.txt", 100).await.unwrap().unwrap(), "content of a.txt");
    let update = Update { timeout: Some(600_000), tags: Some(BTreeMap::new()), ..Update::default() };
    assert_eq!(persistent.update("copy", &update).await.unwrap().tags, BTreeMap::new());
    let query = ListQuery { tag: Some(("cluster".to_owned(), "c1".to_owned())), ..ListQuery::default() };
    let names = |page: vercel_sandbox::Page<vercel_sandbox::Sandbox, String>| -> Vec<String> {
        page.items.into_iter().map(|sandbox| sandbox.name).collect()
    };
    assert_eq!(names(persistent.list(&query, None).await.unwrap()), ["my box/1"]);
    let query = ListQuery { limit: Some(1), ..ListQuery::default() };
    let first = persistent.list(&query, None).await.unwrap();
    let rest = persistent.list(&query, first.next.as_deref()).await.unwrap();
    assert_eq!((names(first), rest.next.clone(), names(rest)), (vec!["copy".into()], None, vec!["my box/1".into()]));
    assert_eq!(persistent.sessions("my box/1", None).await.unwrap().items.len(), 2);
    assert_eq!(persistent.snapshots("my box/1", None).await.unwrap().items.len(), 2);
    assert!(persistent.delete("copy", true).await.unwrap());
    assert!(persistent.delete("my box/1", true).await.unwrap());
    assert!(!persistent.delete("my box/1", true).await.unwrap());
    assert!(persistent.get("my box/1", true).await.unwrap_err().is_status(404));
    assert_eq!(world.double().running(), 0);
    world.no_rule_was_broken();
}

#[tokio::test]
async fn a_vm_whose_time_is_over_is_resumed_once_for_fifty_callers() {
    let world = World::new().await;
    let create = Create { name: Some("box".to_owned()), ..Create::default() };
    let durable = world.client.persistent().create(&create).await.unwrap();
    durable.write_files(HOME, &[File::new("kept.txt", "kept")]).await.unwrap();
    world.double().advance(300_000);
    let reads = (0..50).map(|_| durable.read_file("kept.txt", 100));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap().unwrap(), "kept");
    }
    assert_eq!((world.count("GET", "resume=true"), world.double().running()), (1, 1));
    world.no_rule_was_broken();
}

#[tokio::test]
async fn a_command_ends_by_its_time_limit_with_137() {
    let world = World::new().await;
    let durable = world.client.persistent().create(&Create::default()).await.unwrap();
    let request = CommandRequest { timeout: Some(20), ..CommandRequest::new("sleep", ["60"]) };
    let mut run = durable.run(&request).await.unwrap();
    assert_eq!(told(run.collect().await.unwrap()).2, Some(137));
}
