//! Files that were damaged and disks that are full: nothing that was acknowledged is lost, and nothing breaks off.

use std::process::Command;

use super::*;
use crate::session::conversation::conversation;
use crate::session::entry::Kind;
use crate::session::error::SessionError;
use crate::session::history;
use crate::session::transcript::Transcript;

const MINIMAL: &[u8] = include_bytes!("../../../tests/fixtures/minimal-session.jsonl");

#[test]
fn a_file_with_any_one_byte_changed_reads_as_a_sound_session() {
    for at in 0..MINIMAL.len() {
        for byte in [0, b'\n', b'"', b'}', b'9', 0xff] {
            let mut bytes = MINIMAL.to_vec();
            bytes[at] = byte;
            let read = Transcript::read(&bytes);
            assert_eq!(read, Transcript::read_generally(&bytes), "byte {at} as {byte}");
            let shown = history::messages(&read.transcript);
            assert_eq!(read.transcript.message_count(), shown.len(), "byte {at} as {byte}");
            let found = conversation(&read.transcript, "anthropic", "claude-x", &|_| None);
            assert_eq!(found.messages.len(), found.lines.len());
            if let Some(first) = found.messages.first() {
                assert!(matches!(first, crate::llm::ModelMessage::User(_)), "byte {at} as {byte}");
            }
            for entry in read.transcript.entries() {
                // Whatever was read can be written again and says the same.
                let line = serde_json::from_str(&entry.to_line()).expect("json");
                let again = crate::session::entry::Entry::parse(&line).expect("an entry");
                assert!(again.id == entry.id && (again.kind == entry.kind || matches!(entry.kind, Kind::Other { .. })));
            }
        }
    }
}

#[test]
fn a_file_cut_at_any_byte_reads_the_same_both_ways_and_shows_the_messages_of_its_whole_lines() {
    for cut in 0..=MINIMAL.len() {
        let read = Transcript::read(&MINIMAL[..cut]);
        assert_eq!(read, Transcript::read_generally(&MINIMAL[..cut]), "cut at {cut}");
        let sound = usize::try_from(read.sound_bytes).expect("small");
        let whole = Transcript::read(&MINIMAL[..sound]);
        assert_eq!(history::messages(&read.transcript), history::messages(&whole.transcript), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_damaged_line_in_the_middle_costs_that_line_and_the_session_goes_on() {
    let bench = Bench::new(vec![answer("one"), answer("two"), answer("three")]);
    bench.ask("s", "u1", "first").await;
    bench.ask("s", "u2", "second").await;
    let file =
        std::fs::read_dir(bench.state().join("sessions")).expect("folder").next().expect("file").expect("entry").path();
    let text = std::fs::read_to_string(&file).expect("read");
    for damaged in 1..text.lines().count() {
        let state = bench.folder.path().join(format!("damaged-{damaged}"));
        std::fs::create_dir_all(state.join("sessions")).expect("folder");
        let lines: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(at, line)| if at == damaged { "x".repeat(line.len()) } else { line.to_owned() })
            .collect();
        let copy = state.join("sessions").join(file.file_name().expect("name"));
        std::fs::write(&copy, lines.join("\n") + "\n").expect("written");
        let sessions = bench.reopened(&state);
        sessions.recover().await;
        bench.script.calls.lock().expect("no panic").push_back(answer("on"));
        let turn = sessions.submit(submission("s", "u3", "more")).await.expect("starts");
        chunks(&turn).await;
        let messages = sessions.messages("s", false).await.expect("messages");
        assert_eq!(messages.last(), Some(&turn.message()), "line {damaged}");
        let kept = std::fs::read_to_string(&copy).expect("read");
        assert!(kept.starts_with(&lines.join("\n")), "what was there stays as it was");
    }
}

/// A file system of its own, as small as wanted; `None` where that is not permitted.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(folder: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(folder).expect("folder");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"]).arg(folder);
        let reason = match command.output() {
            Ok(output) if output.status.success() => return Some(Self(folder.to_owned())),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("left out: a small file system cannot be mounted here: {reason}");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, as files are still open in the test.
        let _best_effort = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_loses_nothing_acknowledged_and_the_session_goes_on_when_there_is_room() {
    let bench = Bench::new(Vec::new());
    let state = bench.folder.path().join("small");
    let Some(_disk) = SmallDisk::mount(&state, "1m") else { return };
    let sessions = bench.reopened(&state);
    let say = |words: &str| bench.script.calls.lock().expect("no panic").push_back(answer(words));
    say("one");
    chunks(&sessions.submit(submission("s", "u1", "first")).await.expect("starts")).await;
    let before = sessions.messages("s", false).await.expect("messages");
    // Room for no whole page: the next line does not fit.
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler).expect("filler");
    while std::io::Write::write(&mut file, &[7; 4096]).is_ok_and(|written| written > 0) {}
    let refused = sessions.submit(submission("s", "u2", &"long ".repeat(4_000))).await.expect_err("no room");
    assert_eq!(refused, SessionError::StorageFull);
    assert!(sessions.active("s").is_none(), "the session is free again");
    let new = sessions.create(Some("new".into()), None).await.expect_err("no room");
    assert_eq!(new, SessionError::StorageFull);
    assert_eq!(sessions.messages("s", false).await.expect("messages"), before);
    // A turn that begins while there is room and ends when there is none.
    drop(file);
    std::fs::remove_file(&filler).expect("room again");
    let told = Arc::new(tokio::sync::Notify::new());
    let acts = [vec![Act::Until(told.clone())], answer(&"much ".repeat(8_000))].concat();
    bench.script.calls.lock().expect("no panic").push_back(acts);
    let turn = sessions.submit(submission("s", "u3", "third")).await.expect("starts");
    let mut file = std::fs::File::create(&filler).expect("filler");
    while std::io::Write::write(&mut file, &[7; 4096]).is_ok_and(|written| written > 0) {}
    told.notify_one();
    let ended = chunks(&turn).await;
    assert_eq!(ended.last().expect("an end")["type"], "error");
    assert_eq!(ended[ended.len() - 2]["messageMetadata"]["error"]["code"], "storage_full");
    drop(file);
    std::fs::remove_file(&filler).expect("room again");
    say("four");
    let turn = sessions.submit(submission("s", "u4", "fourth")).await.expect("goes on");
    chunks(&turn).await;
    drop(sessions);
    let reopened = bench.reopened(&state);
    let messages = reopened.messages("s", false).await.expect("messages");
    assert_eq!(messages[..2], before[..]);
    assert_eq!(messages.last(), Some(&turn.message()));
    let users: Vec<&Value> = messages.iter().filter(|message| message["role"] == "user").map(|m| &m["id"]).collect();
    assert_eq!(users, [&json!("u1"), &json!("u3"), &json!("u4")], "what was refused is not there");
}
