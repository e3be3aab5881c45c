//! Baseline: the minimum that a proxy in this language and runtime must do, which is to copy bytes both ways.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};

/// Forwards connections until the process is killed.
pub(crate) async fn relay(listen: SocketAddr, upstream: SocketAddr) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    let listener = socket.listen(4096)?;
    loop {
        let (downstream, _) = listener.accept().await?;
        tokio::spawn(async move {
            // An error ends only this connection.
            copy(downstream, upstream).await.unwrap_or_default();
        });
    }
}

async fn copy(mut downstream: TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let mut upstream = TcpStream::connect(upstream).await?;
    downstream.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut downstream, &mut upstream).await?;
    Ok(())
}
