//! The way of a turn's events to its session. Owns the channel's end; must not know what events mean.

use tokio::sync::mpsc;

use super::TurnEvent;
use super::chunk::Chunk;

/// Sends events. A session that is gone takes nothing more; the turn is then abandoned by its owner.
#[derive(Clone)]
pub struct Emitter(pub mpsc::Sender<TurnEvent>);

impl Emitter {
    /// Sends a chunk.
    pub async fn chunk(&self, chunk: Chunk) {
        self.event(TurnEvent::Chunk(chunk)).await;
    }

    /// Sends any event.
    pub async fn event(&self, event: TurnEvent) {
        let _receiver_gone = self.0.send(event).await;
    }
}
