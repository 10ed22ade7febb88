//! Clients that send nothing take no slot from a node.

use tokio::io::AsyncReadExt;

use super::super::handshake::MAX_UNAUTHENTICATED;
use super::*;

#[tokio::test]
async fn thousand_idle_strangers_block_no_node() {
    // Story: sixty-four connections that said nothing held all the places in which a node could say who it is.
    // None of them has used up its time when the test is over, and a busy machine ends no connection.
    let pace = TransportTimings {
        greet: Duration::from_secs(3_600),
        ..TransportTimings::of(Duration::from_secs(600))
    };
    let patient = |me| TransportConfig { pace, ..terms(me, &SECRET) };
    let (host, _, me, listening) = owner_by(patient).await;
    let (known, running) = ask_by(me.clone(), patient(node("asker", 1, "")));
    until("they are connected", || known.is_up()).await;
    let address = me.advertise.to_string();
    let mut idle = Vec::new();
    for n in 0..1_000 {
        idle.push(TcpStream::connect(&address).await.unwrap());
        if n % 100 == 99 {
            // A node that comes now gets in, however often strangers come again ...
            let (peer, running) = ask_by(me.clone(), patient(node("another", 3, "")));
            until("a node gets in", || peer.is_up()).await;
            running.abort();
            // ... and one that was in before is answered.
            let outcome = known.ask(AWAY, WhenBusy::Refuse, &[Op::Stats]).unwrap().await.unwrap();
            assert!(matches!(outcome, PeerOutcome::NotMine(_)), "{outcome:?}");
        }
    }
    assert_eq!(known.lives(), 1, "the connection of before has never broken");
    for mut stream in idle.drain(..1_000 - MAX_UNAUTHENTICATED) {
        // It has lost its place. A reset ends it, too.
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0);
    }
    assert!(host.shared.bug().is_none());
    running.abort();
    listening.abort();
}

#[tokio::test]
async fn half_open_handshakes_block_no_node() {
    let (_owner, _, me, listening) = owner(&SECRET).await;
    let mut half = Vec::new();
    for _ in 0..2 * MAX_UNAUTHENTICATED {
        let mut stream = TcpStream::connect(&*me.advertise).await.unwrap();
        // The beginning of a TLS record, and never its end.
        stream.write_all(&[tls::FIRST_BYTE, 3, 1, 2, 0]).await.unwrap();
        half.push(stream);
    }
    let (peer, running) = ask(me, &SECRET);
    until("a node gets in", || peer.is_up()).await;
    running.abort();
    listening.abort();
}
