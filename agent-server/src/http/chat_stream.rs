//! The streams of chats: of one turn, live or finished, from any number on, and of a session over its turns.
//!
//! Owns these routes and the headers of such a stream. Must not know how turns run or are stored.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::body::{Path, Query};
use super::error::{ApiError, ApiResult, Code};
use super::openapi::ErrorBody;
use crate::session::turn_log::{Cut, TurnLog};

/// Frames of one piece at most, of about 150 bytes each: a piece fills a few packets. The list of a piece has this capacity
/// also while chunks come one by one, so more would cost every chunk of a live turn.
const FRAMES_AT_ONCE: usize = 32;

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(running_stream)).routes(routes!(turn_stream))
}

/// The stream of a turn from behind `cursor` on.
pub(super) fn of_turn(app: &AppState, log: &Arc<TurnLog>, cursor: u64) -> Response {
    respond(app, log.follow(cursor), Some(log.turn_id()))
}

/// The stream of a turn, if one is named, and of all that begin after it; 204 for an unknown session.
async fn of_session(app: &AppState, id: &str, from: Option<(Arc<TurnLog>, u64)>) -> ApiResult<Response> {
    let turn_id = from.as_ref().map(|(log, _)| log.turn_id().to_owned());
    let frames = app.sessions.follow(id, from).await?;
    Ok(frames.map_or_else(no_content, |frames| respond(app, frames, turn_id.as_deref())))
}

fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// Frames that were ready together as one piece: a long turn that is read again costs a write per piece, not per frame.
/// One frame alone, as a turn under way gives them, is passed on as it is.
fn joined(mut frames: Vec<Result<Bytes, Cut>>) -> Vec<Result<Bytes, Cut>> {
    if frames.len() < 2 {
        return frames;
    }
    // Nothing follows a cut.
    let cut = frames.pop_if(|last| last.is_err());
    let mut piece = BytesMut::new();
    for frame in frames.iter().flatten() {
        piece.extend_from_slice(frame);
    }
    [Ok(piece.freeze())].into_iter().chain(cut).collect()
}

fn respond(
    app: &AppState,
    frames: impl Stream<Item = Result<Bytes, Cut>> + Send + 'static,
    turn_id: Option<&str>,
) -> Response {
    let reader = app.sessions.harness().metrics().reader();
    let counted = frames.ready_chunks(FRAMES_AT_ONCE).flat_map(move |frames| {
        let _held_as_long_as_the_stream = &reader;
        stream::iter(joined(frames))
    });
    let mut response = Response::new(Body::from_stream(counted));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    headers.insert(HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1"));
    if let Some(Ok(turn_id)) = turn_id.map(HeaderValue::from_str) {
        headers.insert(HeaderName::from_static("x-turn-id"), turn_id);
    }
    response
}

/// Whether a stream carries on behind its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Follow {
    /// With every turn that begins later in the session. Not for clients of the AI SDK: their streams carry one turn.
    Session,
}

/// Query of the SDK's resume route.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RunningQuery {
    /// This turn, live or finished.
    turn: Option<String>,
    /// `session`: then all turns that begin later, as long as the reader stays; also when none runs yet.
    follow: Option<Follow>,
}

/// The running turn from its first chunk, then live; 204 when none runs or the session is unknown.
#[utoipa::path(get, path = "/api/v1/agent/chat/{session_id}/stream", tag = "chat", params(RunningQuery, ("session_id" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 204)))]
async fn running_stream(
    State(app): State<AppState>,
    Path(session_id): Path<String>,
    Query(query): Query<RunningQuery>,
) -> ApiResult<Response> {
    let log = match query.turn {
        Some(turn_id) => app.sessions.turn_log(&session_id, &turn_id).await?,
        None => app.sessions.active(&session_id).map(|turn| Arc::clone(&turn.log)),
    };
    match (log, query.follow) {
        (log, Some(Follow::Session)) => of_session(&app, &session_id, log.map(|log| (log, 0))).await,
        (Some(log), None) => Ok(of_turn(&app, &log, 0)),
        (None, None) => Ok(no_content()),
    }
}

/// Query of the numbered resume route.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct TurnQuery {
    /// The last number seen; 0 or absent means all.
    cursor: Option<u64>,
    /// `session`: then all turns that begin later, as long as the reader stays.
    follow: Option<Follow>,
}

/// A turn from behind a number on. `Last-Event-ID` counts before `cursor`.
#[utoipa::path(get, path = "/api/v1/agent/chat/{session_id}/{turn_id}", tag = "chat",
    params(TurnQuery, ("session_id" = String, Path), ("turn_id" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 204),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 416, body = ErrorBody)))]
async fn turn_stream(
    State(app): State<AppState>,
    Path((session_id, turn_id)): Path<(String, String)>,
    Query(query): Query<TurnQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let cursor = match headers.get("last-event-id") {
        Some(id) => event_number(id, &turn_id)?,
        None => query.cursor.unwrap_or(0),
    };
    let Some(log) = app.sessions.turn_log(&session_id, &turn_id).await? else {
        return Err(ApiError::new(Code::NotFound, "this session has no such turn"));
    };
    if cursor > log.last_number() {
        return Err(ApiError::new(Code::RangeNotSatisfiable, "the cursor is beyond the last chunk")
            .with_extra("last", log.last_number()));
    }
    if query.follow == Some(Follow::Session) {
        return of_session(&app, &session_id, Some((log, cursor))).await;
    }
    Ok(if log.has_more(cursor) { of_turn(&app, &log, cursor) } else { no_content() })
}

/// The number in `<turnId>:<n>`; a bare number is taken too.
fn event_number(id: &HeaderValue, turn_id: &str) -> ApiResult<u64> {
    let fault = |text| ApiError::invalid_field("Last-Event-ID", text);
    let id = id.to_str().map_err(|_| fault("not readable"))?;
    let number = match id.rsplit_once(':') {
        Some((turn, number)) if turn == turn_id => number,
        Some(_) => return Err(fault("belongs to another turn")),
        None if id.is_empty() => "0",
        None => id,
    };
    number.parse().map_err(|_| fault("has no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_ready_together_become_one_piece_and_a_cut_still_ends_the_stream() {
        let frame = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        assert_eq!(joined(vec![frame("a")]), [frame("a")]);
        assert_eq!(joined(vec![frame("a"), frame("b"), frame("c")]), [frame("abc")]);
        assert_eq!(joined(vec![frame("a"), frame("b"), Err(Cut)]), [frame("ab"), Err(Cut)]);
        assert_eq!(joined(vec![Err(Cut)]), [Err(Cut)]);
    }
}
