//! Runs the data path: a pingora server on a thread of its own, without its signals, its sleeps and its `exit`.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

use async_trait::async_trait;
use pingora::server::RunArgs;
use pingora::server::Server;
use pingora::server::ShutdownSignal;
use pingora::server::ShutdownSignalWatch;
use pingora::server::configuration::ServerConf;
use tokio::sync::Notify;

use crate::listen::Service;

/// A running data path. Dropping it stops it at once: drain first (`relay::Drain`) to let streams finish.
pub struct Serving {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

/// Serves on `threads` threads. A connection stays on the thread that took it.
///
/// # Errors
/// When the thread cannot be started.
pub fn serve(service: Service, threads: usize) -> io::Result<Serving> {
    let conf = ServerConf { threads: threads.max(1), work_stealing: false, ..ServerConf::default() };
    let stop = Arc::new(Notify::new());
    let shutdown_signal = Box::new(Stop(Arc::clone(&stop)));
    let thread = thread::Builder::new().name("tokometer server".to_owned()).spawn(move || {
        let mut server = Server::new_with_opt_and_conf(None, conf);
        server.add_service(service);
        server.run(RunArgs { shutdown_signal });
    })?;
    Ok(Serving { stop, thread: Some(thread) })
}

impl Serving {
    /// Stops at once; what is still open is closed. Returns when all threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the server's thread has been printed; there is nothing left to stop.
            thread.join().ok();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

/// pingora's graceful ends sleep for a fixed time, 300 s by default; the drain is ours, so this is always the fast one.
struct Stop(Arc<Notify>);

#[async_trait]
impl ShutdownSignalWatch for Stop {
    async fn recv(&self) -> ShutdownSignal {
        self.0.notified().await;
        ShutdownSignal::FastShutdown
    }
}
