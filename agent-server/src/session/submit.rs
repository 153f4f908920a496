//! What a chat POST means: a new turn, an answer again, an edit, or nothing at all.
//!
//! Owns those rules and the order "reserve, store durably, run". Must not know the body's wire form.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, json};

use super::entry::{Entry, Kind, TurnData, TurnStatus};
use super::error::SessionError;
use super::in_use::{ActiveTurn, Disk, Session, Writer};
use super::transcript::Transcript;
use super::turn::{self, TurnStart};
use super::user_message::UserMessage;
use super::{Sessions, conversation, history, ids, recording};
use crate::harness::chunk::Chunk;
use crate::harness::{StoreImage, TurnRequest};
use crate::llm::{KeyState, ThinkingLevel};

/// How long a chat waits for a turn that is being stopped.
const WAIT_FOR_STOPPED: Duration = Duration::from_secs(2);

/// What the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trigger {
    /// A message is to be answered.
    #[default]
    Submit,
    /// A known message is to be answered again.
    Regenerate,
}

/// Which model answers, and how it thinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// As the client says; the default model where it names none.
    Named {
        /// Model id.
        model: Option<String>,
        /// Thinking.
        thinking: ThinkingLevel,
    },
    /// As in the turn before, on the active branch.
    AsBefore,
}

/// A checked chat request.
#[derive(Debug)]
pub struct Submission {
    /// Session; made when there is none.
    pub session_id: String,
    /// The message.
    pub message: UserMessage,
    /// What the client wants.
    pub trigger: Trigger,
    /// On a submit: the known user message that is replaced.
    pub replaces: Option<String>,
    /// Model and thinking level.
    pub choice: Choice,
    /// Appended to the system prompt for this turn.
    pub system_prompt: Option<String>,
}

/// What the rules say about a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// Append the message behind the current position.
    Append,
    /// Answer the message of this line again.
    Again { user_entry: String, user_message_id: String },
    /// Append the message as a sibling of the one that it replaces, behind this line.
    Edit { parent: Option<String> },
}

fn plan(transcript: &Transcript, submission: &Submission) -> Result<Plan, SessionError> {
    let known =
        submission.message.id.as_deref().and_then(|id| transcript.find_user_message(id).map(|found| (id, found)));
    if submission.trigger == Trigger::Regenerate {
        return Ok(match known {
            Some((id, found)) => Plan::Again { user_entry: found.entry.id.clone(), user_message_id: id.to_owned() },
            None => Plan::Append,
        });
    }
    if let Some(replaced) = submission.replaces.as_deref().and_then(|id| transcript.find_user_message(id)) {
        return Ok(Plan::Edit { parent: replaced.entry.parent.clone() });
    }
    match (known, submission.message.id.as_deref()) {
        (Some((id, found)), _) => Err(SessionError::AlreadyExists {
            what: format!("message {id}"),
            turn_id: found.turn.map(|turn| turn.turn_id.clone()),
        }),
        (None, Some(id)) if transcript.has_answer(id) => {
            Err(SessionError::AlreadyExists { what: format!("message {id}"), turn_id: None })
        }
        (None, _) => Ok(Plan::Append),
    }
}

/// What storing the submission gave: everything that the turn needs, but for its system prompt.
pub(super) struct Stored {
    session: Arc<Session>,
    turn: Arc<ActiveTurn>,
    start: TurnData,
    request: TurnRequest,
    /// The lines of the request's messages.
    lines: Vec<String>,
}

impl Stored {
    /// Paths that tools were given so far.
    pub fn touched(&self) -> &[String] {
        &self.request.touched
    }

    /// The turn.
    pub fn turn(&self) -> &Arc<ActiveTurn> {
        &self.turn
    }
}

/// How an attempt to begin a turn went.
enum Attempt {
    Stored(Box<Stored>),
    /// Another turn has the session; the submission comes back.
    Busy(Arc<ActiveTurn>, Box<Submission>),
}

impl Sessions {
    /// Starts a turn, or says why not; without effect then.
    ///
    /// Runs in a task of its own: a client that leaves in between leaves no half-started turn.
    pub async fn submit(self: &Arc<Self>, submission: Submission) -> Result<Arc<ActiveTurn>, SessionError> {
        let sessions = Arc::clone(self);
        tokio::spawn(async move { sessions.start_turn(submission).await })
            .await
            .unwrap_or_else(|error| Err(SessionError::Storage(format!("starting a turn broke off: {error}"))))
    }

    pub(super) async fn start_turn(self: Arc<Self>, submission: Submission) -> Result<Arc<ActiveTurn>, SessionError> {
        let guard = (self.begin_turn)()?;
        let key = self.harness.key_state();
        if key != KeyState::Present {
            return Err(SessionError::ModelUnavailable(key));
        }
        // The prompt is read while the message is written.
        let appended = submission.system_prompt.clone();
        let prompt = self.harness.system_prompt(appended.as_deref(), &[]);
        let (stored, mut system) = tokio::join!(self.reserve_and_store(submission), prompt);
        let stored = stored?;
        if !stored.touched().is_empty() {
            // Known only now that the session was read.
            system = self.harness.system_prompt(appended.as_deref(), stored.touched()).await;
        }
        let turn = Arc::clone(&stored.turn);
        self.launch(stored, system, guard);
        Ok(turn)
    }

    /// Runs a stored turn; `guard` is held until its last chunk.
    pub(super) fn launch(self: Arc<Self>, stored: Stored, system: String, guard: Box<dyn Any + Send>) {
        let Stored { session, turn, start, mut request, lines } = stored;
        request.system = system;
        let start = TurnStart { sessions: self, session, turn, data: start, guard };
        tokio::spawn(turn::run(start, request, lines));
    }

    /// Takes the session's turn and stores the message; waits a little for a turn that is being stopped.
    async fn reserve_and_store(self: &Arc<Self>, mut submission: Submission) -> Result<Stored, SessionError> {
        let deadline = tokio::time::Instant::now() + WAIT_FOR_STOPPED;
        loop {
            let session = self.in_use(&submission.session_id);
            let running = match self.try_store(&session, submission).await? {
                Attempt::Stored(stored) => return Ok(*stored),
                Attempt::Busy(running, back) => {
                    submission = *back;
                    running
                }
            };
            let ended = session.wait_for_end(&running.turn_id);
            if !running.is_ending() || tokio::time::timeout_at(deadline, ended).await.is_err() {
                return Err(SessionError::TurnInProgress { turn_id: running.turn_id.clone() });
            }
        }
    }

    /// One visit to the storage threads: checks the rules, takes the session's turn, writes the user message and the
    /// turn's first line durably, and makes the model's view of the session.
    async fn try_store(
        self: &Arc<Self>,
        session: &Arc<Session>,
        submission: Submission,
    ) -> Result<Attempt, SessionError> {
        let sessions = Arc::clone(self);
        let name = self.index.get(&session.id).map(|record| record.file);
        let shared = Arc::clone(session);
        session
            .with_disk(move |disk, session| {
                if session.active().is_none() || !matches!(disk, Disk::Loaded { .. }) {
                    disk.load(&session.id, name, &session.places)?;
                }
                // A repeated message is refused whether or not its turn still runs, so that the client can find it.
                if let Some(transcript) = disk.transcript() {
                    plan(transcript, &submission)?;
                }
                let turn = ActiveTurn::new(session);
                if let Err(running) = session.reserve(&turn) {
                    return Ok(Attempt::Busy(running, Box::new(submission)));
                }
                match sessions.store(disk, &shared, &turn, submission) {
                    Ok(stored) => Ok(Attempt::Stored(Box::new(stored))),
                    Err(error) => {
                        session.release(&turn);
                        turn.log.abandon();
                        Err(error)
                    }
                }
            })
            .await
    }

    /// Blocks. The caller holds the session's turn.
    fn store(
        self: &Arc<Self>,
        disk: &mut Disk,
        session: &Arc<Session>,
        turn: &Arc<ActiveTurn>,
        submission: Submission,
    ) -> Result<Stored, SessionError> {
        // A turn whose end could not be stored is closed now; nothing else runs while this turn is reserved.
        disk.close_open_turn(&session.id, &session.places)?;
        let (model, thinking) = self.chosen(&submission.choice, disk.transcript());
        let appended = submission.system_prompt.clone();
        let start = disk.write(&session.id, &session.places, |writer| {
            self.write_start(writer, &session.id, turn, submission, (&model, thinking))
        })?;
        let mut stored = self.stored(disk, session, turn, start, (model, thinking))?;
        stored.request.appended = appended;
        Ok(stored)
    }

    /// Ends a turn and begins the next one in the same write. Blocks. The caller holds the session's turn.
    pub(super) fn store_behind(
        self: &Arc<Self>,
        disk: &mut Disk,
        session: &Arc<Session>,
        end: TurnData,
        turn: &Arc<ActiveTurn>,
        submission: Submission,
    ) -> Result<Stored, SessionError> {
        let (model, thinking) = self.chosen(&submission.choice, disk.transcript());
        let start = disk.write(&session.id, &session.places, |writer| {
            writer.add(Kind::Turn(Box::new(end)));
            self.write_start(writer, &session.id, turn, submission, (&model, thinking))
        })?;
        self.stored(disk, session, turn, start, (model, thinking))
    }

    /// Model and thinking level of a submission.
    fn chosen(&self, choice: &Choice, transcript: Option<&Transcript>) -> (String, ThinkingLevel) {
        let default = || self.settings.default_model.clone();
        match choice {
            Choice::Named { model, thinking } => (model.clone().unwrap_or_else(default), *thinking),
            Choice::AsBefore => {
                let branch = transcript.map(Transcript::branch).unwrap_or_default();
                let (last_model, last_thinking) = last_choice(branch.into_iter().rev());
                let model = last_model.filter(|(provider, _)| *provider == self.harness.provider());
                let level = last_thinking.and_then(|level| serde_json::from_value(json!(level)).ok());
                (model.map_or_else(default, |(_, model)| model.to_owned()), level.unwrap_or_default())
            }
        }
    }

    /// What a turn needs whose beginning is stored; its first chunk is in its log.
    fn stored(
        self: &Arc<Self>,
        disk: &Disk,
        session: &Arc<Session>,
        turn: &Arc<ActiveTurn>,
        start: TurnData,
        (model, thinking): (String, ThinkingLevel),
    ) -> Result<Stored, SessionError> {
        self.index_loaded(disk, &session.id);
        let transcript = disk.transcript().ok_or_else(|| SessionError::NotFound(session.id.clone()))?;
        let conversation = conversation::conversation(transcript, self.harness.provider(), &model, &|image| {
            self.attachments.read_base64(&image.sha256)
        });
        let request = TurnRequest {
            model,
            thinking,
            system: String::new(),
            history: conversation.messages,
            counted: conversation.counted,
            appended: None,
            touched: conversation.touched,
            used_call_ids: transcript.call_ids(),
            stop: turn.stop.clone(),
            store_image: store_image(self, &session.id),
        };
        let first = Chunk::Start { message_id: turn.message_id.clone(), message_metadata: start.metadata.clone() };
        turn.log.push(&first);
        turn.fold.lock().unwrap_or_else(std::sync::PoisonError::into_inner).apply(&first);
        Ok(Stored { session: Arc::clone(session), turn: Arc::clone(turn), start, request, lines: conversation.lines })
    }

    fn write_start(
        &self,
        writer: &mut Writer<'_>,
        session_id: &str,
        turn: &ActiveTurn,
        submission: Submission,
        (model, thinking): (&str, ThinkingLevel),
    ) -> Result<TurnData, SessionError> {
        let plan = plan(writer.transcript, &submission)?;
        let mut user_message_id = submission.message.id.clone().unwrap_or_else(|| ids::new_id("msg"));
        let mut user_parts = None;
        let mut user_metadata = None;
        let user_entry = match plan {
            Plan::Again { user_entry, user_message_id: known } => {
                let earlier = writer.transcript.find_user_message(&known).and_then(|found| found.turn);
                user_parts = earlier.and_then(|turn| turn.user_parts.clone());
                user_metadata = earlier.and_then(|turn| turn.user_metadata.clone());
                user_message_id = known;
                writer.parent = Some(user_entry.clone());
                self.write_changes(writer, model, thinking);
                user_entry
            }
            plan => {
                if let Plan::Edit { parent } = plan {
                    writer.parent = parent;
                }
                user_metadata = submission.message.metadata.clone().or(user_metadata);
                let prepared = submission.message.prepare(&self.attachments, session_id)?;
                user_parts = prepared.parts.or(user_parts);
                // Before the message, so that answering it again finds them on its branch.
                self.write_changes(writer, model, thinking);
                writer.add(Kind::User { content: prepared.content })
            }
        };
        let mut metadata = Map::new();
        metadata.insert("turnId".into(), json!(turn.turn_id));
        metadata.insert("createdAt".into(), json!(ids::now()));
        metadata.insert("model".into(), json!({"provider": self.harness.provider(), "id": model}));
        let start = TurnData {
            turn_id: turn.turn_id.clone(),
            message_id: turn.message_id.clone(),
            user_message_id,
            user_entry,
            status: TurnStatus::Running,
            metadata,
            entries: Vec::new(),
            data_parts: Vec::new(),
            tool_errors: std::collections::BTreeMap::new(),
            user_parts,
            user_metadata,
        };
        writer.add(Kind::Turn(Box::new(start.clone())));
        Ok(start)
    }

    /// Notes another model or thinking level where it differs from what holds on the branch.
    fn write_changes(&self, writer: &mut Writer<'_>, model: &str, thinking: ThinkingLevel) {
        let (last_model, last_thinking) = last_choice(writer.back());
        let provider = self.harness.provider();
        let level = json!(thinking).as_str().unwrap_or("off").to_owned();
        let (other_model, other_level) =
            (last_model != Some((provider, model)), last_thinking.unwrap_or("off") != level);
        if other_model {
            writer.add(Kind::Model { provider: provider.to_owned(), model: model.to_owned() });
        }
        if other_level {
            writer.add(Kind::Thinking(level));
        }
    }
}

/// The newest model, with its provider, and the newest thinking level of lines that come newest first.
fn last_choice<'a>(lines: impl Iterator<Item = &'a Entry>) -> (Option<(&'a str, &'a str)>, Option<&'a str>) {
    let (mut last_model, mut last_thinking) = (None, None);
    for entry in lines {
        match &entry.kind {
            Kind::Model { provider, model } => last_model = last_model.or(Some((&**provider, &**model))),
            Kind::Thinking(level) => last_thinking = last_thinking.or(Some(&**level)),
            _ => {}
        }
        if last_model.is_some() && last_thinking.is_some() {
            break;
        }
    }
    (last_model, last_thinking)
}

fn store_image(sessions: &Arc<Sessions>, session_id: &str) -> StoreImage {
    let (store, session_id) = (sessions.attachments.clone(), session_id.to_owned());
    Arc::new(move |_media_type, data| {
        let bytes = recording::decode_image(data)?;
        let kept = store.keep(&session_id, "image", &bytes).map_err(|error| error.kind().to_string())?;
        Ok(history::attachment_url(&kept.sha256))
    })
}
