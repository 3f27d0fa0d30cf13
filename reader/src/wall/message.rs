//! What the recorder tells the sampling thread.

use std::sync::mpsc::{Receiver, TryRecvError};

use selfwind_profile::profile_file::Event;

/// A message to the sampling thread.
pub(super) enum Message {
    /// An event of a process.
    Event(Box<Event>),
    /// Stop sampling.
    End,
}

/// The events since the last call; `None` once sampling is to stop.
pub(super) fn receive(messages: &Receiver<Message>) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    loop {
        match messages.try_recv() {
            Ok(Message::Event(event)) => events.push(*event),
            Ok(Message::End) | Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => return Some(events),
        }
    }
}
