//! The listener of beanstalkd's protocol: one engine with HTTP, and what beanstalkd has not. Whether commands are
//! answered as beanstalkd answers them is the matter of `peer`.

mod client;
mod drain;
mod ends;
mod hostile;
mod keys;
mod limited;
mod one_engine;
mod order;
mod quotas;
mod shards;
mod sizes;
mod strangers;
mod unix_socket;

use std::path::Path;

use duewheel_server::beanstalk::{
    BeanstalkApp, BeanstalkListener, DEFAULT_MAX_BODY, ListenAddress, SocketMode,
};

use crate::fixture::{PATIENCE, Server};
use crate::process::Process;
use client::Client;

/// A server that speaks both, in this process, with virtual time.
struct Both {
    http: Server,
    address: String,
}

impl Both {
    async fn start() -> Both {
        Both::over(Server::start().await).await
    }

    async fn over(http: Server) -> Both {
        let app = BeanstalkApp::new(&http.wheel, DEFAULT_MAX_BODY, 100, http.drain.clone());
        Both::with(http, app).await
    }

    async fn with(http: Server, app: BeanstalkApp) -> Both {
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().expect("address"));
        let listener = BeanstalkListener::bind(&any, SocketMode::default(), app).await.expect("bind");
        let ListenAddress::Tcp(address) = listener.address().expect("address") else { panic!("not TCP") };
        tokio::spawn(listener.run(PATIENCE));
        Both { http, address: address.to_string() }
    }

    /// A client of the protocol that uses and watches this tube and no other.
    fn client(&self, tube: &str) -> Client {
        let mut client = Client::connect(&self.address);
        client.enter(tube);
        client
    }
}

/// A real server, and where it listens for the protocol.
fn start(data: &Path, more: &[&str]) -> (Process, String) {
    let mut server = Process::start(data, &[&["--beanstalk", "127.0.0.1:0"], more].concat());
    let address = server.beanstalk();
    (server, address)
}
