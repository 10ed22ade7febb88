//! Those who say nothing take no place of a node.

use tokio::io::AsyncReadExt;

use super::super::strangers::MAX_STRANGERS;
use super::*;

#[tokio::test]
async fn a_thousand_idle_strangers_keep_no_node_out() {
    // Story: sixty-four connections that said nothing held all the places in which a node could say who it is.
    let pair = pair().await;
    let address = pair.peer.node().advertise.to_string();
    let mut idle = Vec::new();
    for n in 0..1_000 {
        idle.push(TcpStream::connect(&address).await.unwrap());
        if n % 100 == 99 {
            // A node that comes now gets in, however often strangers come again ...
            let (peer, running) = ask(pair.peer.node().clone(), &SECRET);
            until("a node gets in", || peer.is_up()).await;
            running.abort();
            // ... and one that was in before is answered.
            let outcome = pair.peer.ask(AWAY, Patience::None, &[Op::Stats]).unwrap().await.unwrap();
            assert!(matches!(outcome, Outcome::NotMine(_)), "{outcome:?}");
        }
    }
    assert_eq!(pair.peer.lives(), 1, "the connection of before has never broken");
    // They are closed, as they say nothing; most of them at once, because others came.
    assert!(idle.len() > MAX_STRANGERS);
    for mut stream in idle {
        // A reset ends it, too.
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0);
    }
    assert!(pair.owner.shared.bug().is_none());
}

#[tokio::test]
async fn connections_in_the_midst_of_a_handshake_are_strangers_too() {
    let (_owner, _, me, listening) = owner(&SECRET).await;
    let mut half = Vec::new();
    for _ in 0..2 * MAX_STRANGERS {
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
