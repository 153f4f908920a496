//! Figures of sessions: long lists, long histories, long turns, and many chats at once. The session files are written
//! here, in the form that the server itself writes.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::future::try_join_all;
use reqwest::Client;
use serde_json::{Value, json};

use super::server::{Server, TOKEN};
use super::{Figure, Goal, keep, milliseconds, resident_mebibytes};

const LISTED: usize = 2_000;
const LIST_SAMPLES: usize = 100;
/// Sessions of ten thousand entries; each is opened once.
const LONG: usize = 20;
const LONG_ENTRIES: usize = 10_000;
const CHUNKS: usize = 5_000;
const RESUME_SAMPLES: usize = 50;
const APPENDS: usize = 50;
/// Chats at once, of so many deltas so far apart.
const AT_ONCE: usize = 200;
const DELTAS: usize = 50;
const DELTA_MILLISECONDS: usize = 20;
const AT_ONCE_RUNS: usize = 3;
/// Entries that a turn without tools leaves: message, begin, answer, end.
const ENTRIES_PER_TURN: usize = 4;
const STREAMS: usize = 1_000;

/// Runs the figures of sessions.
pub async fn run(binary: &Path, client: &Client, model_url: &str, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    keep(figures, [list(binary, client, model_url).await?]);
    keep(figures, histories(binary, client, model_url).await?);
    keep(figures, at_once(binary, client, model_url).await?);
    keep(figures, [streams(binary, client, model_url).await?]);
    Ok(())
}

/// A session file with so many entries, in turns of a question and an answer.
fn session_file(id: &str, entries: usize) -> String {
    let mut text = format!(
        "{{\"type\":\"session\",\"version\":3,\"id\":\"{id}\",\"timestamp\":\"2026-11-30T14:00:00.000Z\",\"cwd\":\"/workspace\"}}\n"
    );
    let mut parent = Value::Null;
    let mut add = |number: usize, kind: &str, mut line: Value| {
        let entry = format!("{number:08x}");
        line["id"] = json!(entry);
        line["parentId"] = std::mem::replace(&mut parent, json!(entry));
        line["timestamp"] = json!("2026-11-30T14:00:01.000Z");
        // The type comes first, as in every file of the format.
        let rest = line.to_string();
        let _never_fails = writeln!(text, "{{\"type\":\"{kind}\",{}", &rest[1..]);
    };
    for turn in 0..entries.div_ceil(ENTRIES_PER_TURN) {
        let at = turn * ENTRIES_PER_TURN;
        let data = |status: &str| {
            json!({"customType": "boring-agent/turn", "data": {
                "turnId": format!("turn_{id}_{turn}"), "messageId": format!("msg_{turn}"), "userMessageId": format!("u{turn}"),
                "userEntry": format!("{at:08x}"), "status": status,
                "metadata": {"turnId": format!("turn_{id}_{turn}"), "usage": {"inputTokens": 10, "outputTokens": 20}},
                "entries": [format!("{:08x}", at + 2)]}})
        };
        let question = format!("Question {turn} of a long session, as people ask them.");
        let answer =
            format!("Answer {turn}, which is a sentence or two long and says what was done and why it was done.");
        let usage = json!({"input": 10, "output": 20, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 30,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}});
        add(
            at,
            "message",
            json!({"message": {"role": "user", "content": [{"type": "text", "text": question}], "timestamp": 1}}),
        );
        add(at + 1, "custom", data("running"));
        add(
            at + 2,
            "message",
            json!({"message": {"role": "assistant", "content": [{"type": "text", "text": answer}],
                "api": "anthropic-messages", "provider": "anthropic", "model": "scripted-model", "usage": usage,
                "stopReason": "stop", "timestamp": 1}}),
        );
        add(at + 3, "custom", data("finished"));
    }
    text
}

fn put_session(state: &Path, id: &str, entries: usize) -> anyhow::Result<()> {
    let folder = state.join("sessions");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("2026-11-30T14-00-00-000Z_{id}.jsonl")), session_file(id, entries))?;
    Ok(())
}

async fn get(client: &Client, server: &Server, path: &str) -> anyhow::Result<(Duration, usize)> {
    let begin = Instant::now();
    let request = client.get(format!("{}/api/v1/agent{path}", server.base_url)).bearer_auth(TOKEN);
    let body = request.send().await?.error_for_status()?.bytes().await?;
    Ok((begin.elapsed(), body.len()))
}

/// The first page of a list of two thousand sessions.
async fn list(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Figure> {
    let server = Server::start_with(binary, client, model_url, |state| {
        (0..LISTED).try_for_each(|number| put_session(state, &format!("listed-{number}"), ENTRIES_PER_TURN))
    });
    let server = server.await?;
    get(client, &server, "/sessions").await?;
    let mut samples = Vec::new();
    for _ in 0..LIST_SAMPLES {
        samples.push(milliseconds(get(client, &server, "/sessions").await?.0));
    }
    Ok(Figure::new(format!("sessions: a page of {LISTED}"), "ms", samples, Goal::MedianAtMost(5.0)))
}

/// Long sessions opened, long turns resumed, appends to long and short sessions.
async fn histories(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start_with(binary, client, model_url, |state| {
        for number in 0..LONG {
            put_session(state, &format!("long-{number}"), LONG_ENTRIES)?;
        }
        put_session(state, "short", ENTRIES_PER_TURN)?;
        put_session(state, "chunks", ENTRIES_PER_TURN)?;
        let folder = state.join("turns").join("chunks");
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join("turn_chunks_0.log"), chunk_log("turn_chunks_0"))?)
    });
    let server = server.await?;
    let mut opened = Vec::new();
    for number in 0..LONG {
        let (took, bytes) = get(client, &server, &format!("/chat/long-{number}/messages?limit=50")).await?;
        if bytes < 5_000 {
            bail!("a page of {bytes} bytes");
        }
        opened.push(milliseconds(took));
    }
    let mut resumed = Vec::new();
    for _ in 0..RESUME_SAMPLES {
        let (took, bytes) = get(client, &server, "/chat/chunks/stream?turn=turn_chunks_0").await?;
        if bytes < CHUNKS * 50 {
            bail!("{bytes} bytes of a resumed turn");
        }
        resumed.push(milliseconds(took));
    }
    let (mut long, mut short) = (Vec::new(), Vec::new());
    for number in 0..APPENDS {
        for (id, samples) in [("long-0", &mut long), ("short", &mut short)] {
            let begin = Instant::now();
            let request = client.patch(format!("{}/api/v1/agent/sessions/{id}", server.base_url)).bearer_auth(TOKEN);
            request.json(&json!({"title": format!("Title {number}")})).send().await?.error_for_status()?;
            samples.push(milliseconds(begin.elapsed()));
        }
    }
    let over: Vec<f64> = long.iter().zip(&short).map(|(long, short)| long - short).collect();
    Ok(vec![
        Figure::new(format!("session of {LONG_ENTRIES} entries opened"), "ms", opened, Goal::MedianAtMost(50.0)),
        Figure::new(format!("turn of {CHUNKS} chunks resumed from disk"), "ms", resumed, Goal::MedianAtMost(30.0)),
        Figure::new("append to a short session", "ms", short, Goal::MedianAtMost(5.0)),
        Figure::new(format!("append at {LONG_ENTRIES} entries, over a short one"), "ms", over, Goal::MedianAtMost(1.0)),
    ])
}

/// The chunk log of a turn with so many text deltas.
fn chunk_log(turn_id: &str) -> String {
    let mut text = String::new();
    let mut number = 0;
    let mut add = |chunk: Value| {
        number += 1;
        let _never_fails = writeln!(text, "{number}\t{chunk}");
    };
    add(json!({"type": "start", "messageId": "msg_0", "messageMetadata": {"turnId": turn_id}}));
    add(json!({"type": "start-step"}));
    add(json!({"type": "text-start", "id": "s1-t0"}));
    for number in 0..CHUNKS {
        add(json!({"type": "text-delta", "id": "s1-t0", "delta": format!("word {number} ")}));
    }
    add(json!({"type": "text-end", "id": "s1-t0"}));
    add(json!({"type": "finish-step"}));
    add(json!({"type": "finish", "finishReason": "stop", "messageMetadata": {"durationMs": 1}}));
    text
}

/// A prompt that makes the model say so many pieces so far apart.
fn slow_prompt(number: usize) -> String {
    let text = "word ".repeat(DELTAS);
    let script = json!([[{"text": text, "chunks": DELTAS, "delayMs": DELTA_MILLISECONDS}]]);
    format!("Chat {number}.\n```model-script\n{script}\n```")
}

/// Reads a body to its end and checks what it ends with.
async fn whole(request: reqwest::RequestBuilder, end: &str) -> anyhow::Result<()> {
    let text = request.send().await?.error_for_status()?.text().await?;
    if !text.contains(end) {
        bail!("a stream without {end}: {}", &text[text.len().saturating_sub(200)..]);
    }
    Ok(())
}

/// Two hundred chats at once, against the same two hundred calls made to the model alone.
async fn at_once(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(binary, client, model_url).await?;
    let (mut ratios, mut memory) = (Vec::new(), Vec::new());
    for run in 0..AT_ONCE_RUNS {
        let begin = Instant::now();
        let direct = (0..AT_ONCE).map(|number| {
            let request = client
                .post(format!("{model_url}/v1/messages"))
                .header("x-api-key", "bench-key")
                .header("anthropic-version", "2023-06-01")
                .json(&json!({"model": "scripted-model", "max_tokens": 1000, "stream": true,
                    "messages": [{"role": "user", "content": slow_prompt(number)}]}));
            whole(request, "message_stop")
        });
        try_join_all(direct).await?;
        let alone = begin.elapsed();
        let begin = Instant::now();
        let chats = (0..AT_ONCE).map(|number| {
            let request = client
                .post(format!("{}/api/v1/agent/chat", server.base_url))
                .bearer_auth(TOKEN)
                .json(&json!({"sessionId": format!("at-once-{run}-{number}"), "message": slow_prompt(number)}));
            whole(request, "[DONE]")
        });
        let chats = try_join_all(chats);
        tokio::pin!(chats);
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        let mut highest: f64 = 0.0;
        loop {
            tokio::select! {
                done = &mut chats => {
                    done?;
                    break;
                }
                _ = tick.tick() => highest = highest.max(resident_mebibytes(server.pid)?),
            }
        }
        ratios.push(begin.elapsed().as_secs_f64() / alone.as_secs_f64());
        memory.push(highest);
    }
    Ok(vec![
        Figure::new(format!("{AT_ONCE} chats at once over the model alone"), "x", ratios, Goal::MedianAtMost(1.15)),
        Figure::new(format!("memory with {AT_ONCE} chats at once"), "MiB", memory, Goal::MaxAtMost(60.0)),
    ])
}

/// Memory with a thousand readers of one running turn.
async fn streams(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Figure> {
    let server = Server::start(binary, client, model_url).await?;
    let base = format!("{}/api/v1/agent/chat", server.base_url);
    let chat = client.post(&base).bearer_auth(TOKEN).json(&json!({"sessionId": "read", "message": slow_prompt(0)}));
    let first = chat.send().await?.error_for_status()?;
    let turn = first.headers().get("x-turn-id").context("no turn id")?.to_str()?.to_owned();
    let readers =
        (0..STREAMS).map(|_| whole(client.get(format!("{base}/read/{turn}?cursor=0")).bearer_auth(TOKEN), "[DONE]"));
    let readers = try_join_all(readers);
    tokio::pin!(readers);
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let mut memory = Vec::new();
    loop {
        tokio::select! {
            done = &mut readers => {
                done?;
                break;
            }
            _ = tick.tick() => memory.push(resident_mebibytes(server.pid)?),
        }
    }
    drop(first);
    Ok(Figure::new(format!("memory with {STREAMS} readers of a turn"), "MiB", memory, Goal::MaxAtMost(100.0)))
}
