//! Event streams: changes of files, commands for the user interface, sessions, and all of them in one connection.
//!
//! Owns the frames, the topics and the ids that resume. Must not know how changes and commands come about.

use std::future::pending;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures::StreamExt as _;
use futures::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::Query;
use super::error::{ApiError, ApiResult};
use super::gate::LAST_EVENT_ID;
use super::openapi::ErrorBody;
use super::session_feed::SessionFeed;
use super::sse::{self, Frame};
use super::ui::CommandEvent;
use crate::session::notice::Notice;
use crate::ui_bridge::{self, CommandReader};
use crate::workspace::changes::{self, ChangeReader, Coverage};

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(fs_events)).routes(routes!(all_events))
}

/// Changes of files, from now on or after `Last-Event-ID`: `hello {topic, epoch, seq, watch}` at once, then `change {op,
/// path, oldPath?, mtimeMs?}`, `resync {topic}` when changes were missed, `limit {topic, watch}` when what is watched
/// changes.
#[utoipa::path(get, path = "/api/v1/fs/events", tag = "events",
    params(("Last-Event-ID" = Option<String>, Header, description = "id of the last event seen")),
    responses((status = 200, description = "Server-Sent Events", content_type = "text/event-stream", body = String)))]
async fn fs_events(State(app): State<AppState>, headers: HeaderMap) -> Response {
    let reader = app.workspace.changes().read(last_event_id(&headers).as_deref());
    Feed { fs: Some(reader), ..Feed::default() }.response(&app)
}

/// The stream of `/api/v1/ui/commands/next`.
pub fn commands(app: &AppState, headers: &HeaderMap) -> Response {
    let reader = CommandReader::new(app.ui_bridge.clone(), last_event_id(headers).as_deref());
    Feed { ui: Some(reader), ..Feed::default() }.response(app)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// One or more of `fs`, `ui` and `sessions`, separated by commas.
    topics: String,
}

/// Several event streams in one connection. Events are those of the single streams, and for `sessions` `session {op:
/// created|updated|status|deleted, id, title, status, updatedAt}`; ids hold the place in each.
#[utoipa::path(get, path = "/api/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "id of the last event seen")),
    responses((status = 200, description = "Server-Sent Events", content_type = "text/event-stream", body = String),
        (status = 400, body = ErrorBody)))]
async fn all_events(
    State(app): State<AppState>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let id = last_event_id(&headers);
    // A place that names no topic at all is a place that is not known: each topic then says so.
    let place = |topic: &str| id.as_deref().map(|id| place_in(id, topic).unwrap_or_default());
    let mut feed = Feed { combined: true, ..Feed::default() };
    for topic in query.topics.split(',').map(str::trim) {
        match topic {
            "fs" => feed.fs = Some(app.workspace.changes().read(place(topic))),
            "ui" => feed.ui = Some(CommandReader::new(app.ui_bridge.clone(), place(topic))),
            "sessions" => feed.sessions = Some(SessionFeed::new(app.sessions.clone(), place(topic))),
            _ => return Err(ApiError::invalid_field("topics", "needs one or more of `fs`, `ui` and `sessions`")),
        }
    }
    Ok(feed.response(&app))
}

/// The id that a client resumes after. One that is no text means a place that is not known.
fn last_event_id(headers: &HeaderMap) -> Option<String> {
    headers.get(LAST_EVENT_ID).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The place of one topic in an id of several: `fs:<place>,ui:<place>`.
fn place_in<'a>(id: &'a str, topic: &str) -> Option<&'a str> {
    id.split(',').find_map(|part| part.strip_prefix(topic)?.strip_prefix(':'))
}

/// The topics of one connection.
#[derive(Default)]
struct Feed {
    fs: Option<ChangeReader>,
    ui: Option<CommandReader>,
    sessions: Option<SessionFeed>,
    notices: Option<broadcast::Receiver<Notice>>,
    combined: bool,
}

impl Feed {
    /// The stream; it ends when the server stops, so that no reader keeps it from ending.
    fn response(mut self, app: &AppState) -> Response {
        self.notices = Some(app.sessions.notices());
        let frames = stream::unfold(self, |mut feed| async move {
            let frame = feed.next().await;
            let id = feed.id();
            Some((frame.with_id(id), feed))
        });
        let activity = Arc::clone(&app.activity);
        sse::response(frames.take_until(async move { activity.stopped().await }))
    }

    async fn next(&mut self) -> Frame {
        tokio::select! {
            told = next_change(self.fs.as_mut()) => change_frame(told, self.fs.as_ref()),
            told = next_command(self.ui.as_mut()) => command_frame(told, self.ui.as_ref()),
            frame = next_session(self.sessions.as_mut()) => frame,
            frame = next_notice(self.notices.as_mut()) => frame,
        }
    }

    fn id(&self) -> String {
        let fs = self.fs.as_ref().map(ChangeReader::id);
        let ui = self.ui.as_ref().map(|reader| reader.number().to_string());
        let sessions = self.sessions.as_ref().map(SessionFeed::place);
        let places = [("fs", fs), ("ui", ui), ("sessions", sessions)];
        let places = places.into_iter().filter_map(|(topic, place)| Some((topic, place?)));
        if self.combined {
            return places.map(|(topic, place)| format!("{topic}:{place}")).collect::<Vec<_>>().join(",");
        }
        places.map(|(_, place)| place).collect()
    }
}

/// Remarks for everybody who watches; one that was missed is no fault.
async fn next_notice(notices: Option<&mut broadcast::Receiver<Notice>>) -> Frame {
    let Some(notices) = notices else { return pending().await };
    loop {
        match notices.recv().await {
            Ok(notice) => return Frame::event("notice", json!(notice).to_string()),
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return pending().await,
        }
    }
}

async fn next_change(reader: Option<&mut ChangeReader>) -> changes::Told {
    match reader {
        Some(reader) => reader.next().await,
        None => pending().await,
    }
}

async fn next_command(reader: Option<&mut CommandReader>) -> ui_bridge::Told {
    match reader {
        Some(reader) => reader.next().await,
        None => pending().await,
    }
}

async fn next_session(feed: Option<&mut SessionFeed>) -> Frame {
    match feed {
        Some(feed) => feed.next().await,
        None => pending().await,
    }
}

fn change_frame(told: changes::Told, reader: Option<&ChangeReader>) -> Frame {
    match told {
        changes::Told::Hello(coverage) => {
            let place = reader.map(|reader| (reader.epoch(), reader.number()));
            let (epoch, seq) = place.unwrap_or_default();
            let watch = coverage.as_ref().map_or(Value::Null, value);
            Frame::event("hello", json!({"topic": "fs", "epoch": epoch, "seq": seq, "watch": watch}).to_string())
        }
        changes::Told::Change(change) => Frame::event("change", value(&change).to_string()),
        changes::Told::Resync => resync("fs"),
        changes::Told::Coverage(coverage) => limit(&coverage),
    }
}

fn command_frame(told: ui_bridge::Told, reader: Option<&CommandReader>) -> Frame {
    match told {
        ui_bridge::Told::Hello => {
            let seq = reader.map(CommandReader::number).unwrap_or_default();
            Frame::event("hello", json!({"topic": "ui", "seq": seq}).to_string())
        }
        ui_bridge::Told::Command(seq, command) => {
            Frame::event("command", value(&CommandEvent::new(seq, command)).to_string())
        }
        ui_bridge::Told::Resync => resync("ui"),
    }
}

fn resync(topic: &str) -> Frame {
    Frame::event("resync", json!({"topic": topic}).to_string())
}

fn limit(coverage: &Coverage) -> Frame {
    Frame::event("limit", json!({"topic": "fs", "watch": value(coverage)}).to_string())
}

/// These types have only texts, numbers and JSON in them, so they always have a JSON form.
fn value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
