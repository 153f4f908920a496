//! Making, naming and deleting sessions. Owns what each takes along; must not know HTTP.

use std::sync::Arc;

use super::entry::Kind;
use super::error::SessionError;
use super::in_use::Disk;
use super::index::Record;
use super::{Sessions, ids, retention, user_message};
use crate::harness::AbortReason;

impl Sessions {
    /// Makes an empty session.
    pub async fn create(self: &Arc<Self>, id: Option<String>, title: Option<String>) -> Result<Record, SessionError> {
        let id = id.unwrap_or_else(|| ids::new_id("session"));
        if !ids::is_session_id(&id) {
            return Err(SessionError::Invalid {
                field: "id",
                message: format!("an id has 1 to {} characters of A-Z, a-z, 0-9, _ and -", ids::MAX_ID),
            });
        }
        let session = self.load(&id).await?;
        let taken = SessionError::AlreadyExists { what: format!("session {id}"), turn_id: None };
        session
            .with_disk(move |disk, session| {
                if disk.transcript().is_some() {
                    return Err(taken);
                }
                disk.write(&session.id, &session.places, |writer| {
                    if let Some(title) = title {
                        writer.add(Kind::Name(user_message::shorten(&title)));
                    }
                    Ok(())
                })
            })
            .await?;
        self.refresh_index(&id).await?;
        self.summary(&id).await
    }

    /// Names a session.
    pub async fn rename(self: &Arc<Self>, id: &str, title: String) -> Result<Record, SessionError> {
        let session = self.existing(id).await?;
        session
            .with_disk(move |disk, session| {
                disk.write(&session.id, &session.places, |writer| {
                    writer.add(Kind::Name(user_message::shorten(&title)));
                    Ok(())
                })
            })
            .await?;
        self.refresh_index(id).await?;
        self.summary(id).await
    }

    /// Deletes a session with its log and attachments; a running turn is stopped first.
    pub async fn delete(self: &Arc<Self>, id: &str) -> Result<(), SessionError> {
        let session = self.existing(id).await?;
        self.stop(id, None, AbortReason::User).await;
        let attachments = self.attachments.clone();
        session
            .with_disk(move |disk, session| {
                let Disk::Loaded { name, transcript, .. } = &*disk else {
                    return Err(SessionError::NotFound(session.id.clone()));
                };
                if session.active().is_some() {
                    return Err(SessionError::Locked(session.id.clone()));
                }
                std::fs::remove_file(session.places.sessions.join(name))?;
                std::fs::File::open(&session.places.sessions)?.sync_all()?;
                retention::remove_session(&session.places.turns, &session.id);
                attachments.release(&session.id, retention::kept_hashes(transcript.entries()));
                *disk = Disk::Deleted;
                Ok(())
            })
            .await?;
        self.lock().remove(id);
        if let Some(record) = self.index.get(id) {
            let sessions = Arc::clone(self);
            let put = move || sessions.index.put(Record { deleted: true, ..record });
            if let Err(error) = tokio::task::spawn_blocking(put).await {
                tracing::warn!(%error, "the session index was not written");
            }
        }
        Ok(())
    }
}
