//! Passes requests to their observers shortly after the bytes were forwarded.
//!
//! With hundreds of streams, the memory of an observer is in no CPU cache when an event arrives. Several events at once
//! cost little more than one. Observing delays neither a response nor the client's next request.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::rewrite::client::lock;
use crate::rewrite::message::Messages;

/// Maximum age of a pending item. Readers of the state in flight see it this much later; recorded times are exact.
const DELAY: Duration = Duration::from_millis(100);

/// After this many requests, the thread serves its connections.
const AT_ONCE: usize = 32;

/// Maximum number of ended requests; limits their memory.
const ENDED: usize = 64;

/// The requests of one thread that have pending items.
#[derive(Default)]
pub(crate) struct Deferred {
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    /// Weak, because a request may end first.
    open: Vec<Weak<Mutex<Messages>>>,
    ended: Vec<Arc<Mutex<Messages>>>,
    /// A task will pass them.
    has_task: bool,
}

impl Deferred {
    /// Passes the pending items of this request to its observer within [`DELAY`].
    pub(crate) fn add(self: &Arc<Self>, messages: &Arc<Mutex<Messages>>) {
        self.push(|requests| requests.open.push(Arc::downgrade(messages)));
    }

    /// As [`add`](Deferred::add), for a request that has ended.
    pub(crate) fn end(self: &Arc<Self>, messages: Arc<Mutex<Messages>>) {
        if lock(&self.requests).ended.len() < ENDED {
            self.push(|requests| requests.ended.push(messages));
        } else {
            lock(&messages).close();
        }
    }

    fn push(self: &Arc<Self>, push: impl FnOnce(&mut Requests)) {
        let mut requests = lock(&self.requests);
        push(&mut requests);
        if !std::mem::replace(&mut requests.has_task, true) {
            tokio::spawn(Arc::clone(self).pass());
        }
    }

    async fn pass(self: Arc<Self>) {
        tokio::time::sleep(DELAY).await;
        let Requests { open, ended, .. } = std::mem::take(&mut *lock(&self.requests));
        for some in open.chunks(AT_ONCE) {
            for messages in some.iter().filter_map(Weak::upgrade) {
                lock(&messages).show();
            }
            tokio::task::yield_now().await;
        }
        for some in ended.chunks(AT_ONCE) {
            some.iter().for_each(|messages| lock(messages).close());
            tokio::task::yield_now().await;
        }
    }
}
