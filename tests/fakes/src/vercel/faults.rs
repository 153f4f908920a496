//! The script of faults: which request goes wrong, and how. It owns no state of the account.

use std::io;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;

/// What goes wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Action {
    /// Answers so, and nothing happens.
    Status {
        /// The status code.
        status: u16,
        /// The body; JSON `null` is an empty one.
        #[serde(default)]
        body: Value,
        /// `Retry-After` in seconds.
        retry_after: Option<u64>,
    },
    /// The request takes effect, then the connection is closed without an answer.
    LostAnswer,
    /// The connection is closed at once, without effect.
    Refused,
    /// Headers never come, and nothing happens.
    NoHeaders,
    /// The request takes effect, and the body ends after so many bytes with a broken connection.
    Cut {
        /// Bytes that still arrive.
        bytes: usize,
    },
    /// The body is sent in pieces of so many bytes, which splits characters.
    Pieces {
        /// Size of a piece.
        bytes: usize,
    },
}

/// One use of an action.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// Method that it fits.
    pub method: String,
    /// Text that the path holds.
    pub path: String,
    /// How often it still applies.
    #[serde(default = "once")]
    pub times: usize,
    /// What happens then.
    pub action: Action,
}

fn once() -> usize {
    1
}

impl Fault {
    /// A fault that happens once.
    pub fn once(method: &str, path: &str, action: Action) -> Self {
        Self::times(1, method, path, action)
    }

    /// A fault that happens several times.
    pub fn times(times: usize, method: &str, path: &str, action: Action) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), times, action }
    }
}

/// Takes the first fault that fits.
pub fn take(faults: &mut Vec<Fault>, method: &str, path: &str) -> Option<Action> {
    let at = faults.iter().position(|fault| fault.method == method && path.contains(&fault.path))?;
    faults[at].times = faults[at].times.saturating_sub(1);
    let action = faults[at].action.clone();
    if faults[at].times == 0 {
        faults.remove(at);
    }
    Some(action)
}

/// Ends the body with an error after so many bytes, which are sent before.
pub fn cut(response: Response, bytes: usize) -> Response {
    response.map(|body| {
        let kept = body.into_data_stream().scan(bytes, |left, piece| {
            let step = match piece {
                _ if *left == 0 => None,
                Ok(piece) => {
                    let kept = piece.slice(..piece.len().min(*left));
                    *left -= kept.len();
                    Some(Ok(kept))
                }
                Err(error) => Some(Err(io::Error::other(error))),
            };
            std::future::ready(step)
        });
        Body::from_stream(kept.chain(futures::stream::once(async {
            // The connection sends what it holds when the body makes it wait, and drops it on an error.
            tokio::task::yield_now().await;
            Err(io::Error::other("scripted cut"))
        })))
    })
}

/// Sends the body in small pieces.
pub fn pieces(response: Response, bytes: usize) -> Response {
    response.map(|body| {
        Body::from_stream(body.into_data_stream().flat_map(move |piece| {
            let parts: Vec<Result<Bytes, axum::Error>> = match piece {
                Ok(piece) => piece.chunks(bytes.max(1)).map(|part| Ok(Bytes::copy_from_slice(part))).collect(),
                Err(error) => vec![Err(error)],
            };
            futures::stream::iter(parts)
        }))
    })
}
