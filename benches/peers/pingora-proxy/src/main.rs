//! pingora-proxy without a filter, as a peer of the load bench: `pingora-proxy-peer LISTEN UPSTREAM`.

use async_trait::async_trait;
use pingora::prelude::{HttpPeer, ProxyHttp, Result, Server, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;

/// Forwards everything to one server.
struct Bare {
    upstream: String,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(&self.upstream, false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: pingora-proxy-peer LISTEN UPSTREAM");
        std::process::exit(2);
    };
    let settings = ServerConf { threads: 1, upstream_keepalive_pool_size: 6000, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, settings);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare { upstream });
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
