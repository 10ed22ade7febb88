//! The suite that every source and sink passes: it ends the other side, and looks for what was lost.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use duewheel::core::engine::{Grant, Reserve, Reserved};
use duewheel::core::name::QueueName;
use duewheel::{Duewheel, Policy};
use tokio::sync::mpsc::unbounded_channel;

use crate::seam::{
    ArrivalVerdict, BridgeArrival, BridgeConnector, Intent, SeamError, SendFate, Sink, Source,
};

/// How long the other side may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages of each part.
const MESSAGES: usize = 40;

/// The other side of a connector, for the suite. Failures may panic: it is for tests.
pub trait OtherSide: Send {
    /// The connector.
    type Connector: BridgeConnector;

    /// Connects to this side.
    fn connector(&self) -> &Self::Connector;

    /// Puts messages with these bodies where the source takes them.
    fn offer(&mut self, bodies: &[String]) -> impl Future<Output = ()> + Send;

    /// Ends the other side as a crash does, and starts it again with what it had made durable.
    fn kill(&mut self) -> impl Future<Output = ()> + Send;

    /// The bodies of all messages that have arrived by the sink, in any order, repeated ones too.
    fn arrived(&mut self) -> impl Future<Output = Vec<String>> + Send;
}

/// Tests a source: what was not confirmed comes again after a crash of the other side, what was confirmed does not.
///
/// # Errors
/// A mistake of the source.
pub async fn source(world: &mut impl OtherSide) -> Result<(), String> {
    let bodies: Vec<String> = (0..MESSAGES).map(|n| format!("in {n}")).collect();
    world.offer(&bodies).await;
    let mut source = connect(async || world.connector().source().await).await?;
    let pulled = pull(&mut source, MESSAGES).await?;
    let marks: BTreeSet<u64> = pulled.iter().map(|arrival| arrival.mark).collect();
    if marks.len() != pulled.len() {
        return Err("two messages have one mark".to_owned());
    }
    // Every second one, so that a source which confirms all before one is found as well.
    let (confirmed, open): (Vec<_>, Vec<_>) =
        pulled.iter().enumerate().partition::<Vec<_>, _>(|(n, _)| n % 2 == 0);
    let verdicts = confirmed.iter().map(|(_, arrival)| (arrival.mark, ArrivalVerdict::Taken)).collect();
    source.confirm(verdicts).await.map_err(|why| format!("nothing could be confirmed: {why}"))?;
    // The answer to a confirm is not waited for: give it a moment to get there.
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.kill().await;
    drop(source);
    let mut source = connect(async || world.connector().source().await).await?;
    let again = pull(&mut source, open.len()).await.map_err(|why| format!("a message was lost: {why}"))?;
    let again: BTreeSet<String> = again.iter().map(body).collect();
    for (_, arrival) in &open {
        if !again.contains(&body(arrival)) {
            return Err(format!("{:?} was not confirmed and is lost", body(arrival)));
        }
    }
    for (_, arrival) in &confirmed {
        if again.contains(&body(arrival)) {
            return Err(format!("{:?} was confirmed and came again", body(arrival)));
        }
    }
    Ok(())
}

/// Tests a sink: each message is reported once, and what is reported as sent has arrived, also after a crash of the other
/// side in the middle of a batch.
///
/// # Errors
/// A mistake of the sink.
pub async fn sink(world: &mut impl OtherSide) -> Result<(), String> {
    let mut sent = BTreeSet::new();
    for round in 0..3 {
        let bodies: Vec<String> = (0..MESSAGES).map(|n| format!("out {round} {n}")).collect();
        let grants = grants(&bodies).await?;
        let mut sink = connect(async || world.connector().sink().await).await?;
        let (heard, mut fates) = unbounded_channel();
        let crashes = round == 1;
        let sending = async { tokio::time::timeout(PATIENCE, sink.send(&grants, &heard)).await };
        let ended = if crashes {
            let (ended, ()) = tokio::join!(sending, world.kill());
            ended
        } else {
            sending.await
        };
        drop((sink, heard));
        let ended = ended.map_err(|_| "a batch does not end".to_owned())?;
        let mut told = vec![false; grants.len()];
        while let Some((n, fate)) = fates.recv().await {
            let before = told.get_mut(n).ok_or("the fate of a message that is not in the batch")?;
            if std::mem::replace(before, true) {
                return Err(format!("the fate of {:?} was told twice", bodies[n]));
            }
            match fate {
                SendFate::Sent => drop(sent.insert(bodies[n].clone())),
                SendFate::NotNow(_) if crashes => {}
                other => return Err(format!("{:?} had the fate {other:?}", bodies[n])),
            }
        }
        match ended {
            Ok(()) => {
                if let Some(n) = told.iter().position(|told| !told) {
                    return Err(format!("nothing was heard of {:?}", bodies[n]));
                }
            }
            Err(_) if crashes => {}
            Err(why) => return Err(format!("a batch failed: {why}")),
        }
    }
    let arrived: BTreeSet<String> = world.arrived().await.into_iter().collect();
    match sent.difference(&arrived).next() {
        Some(lost) => Err(format!("{lost:?} was reported as sent and is lost")),
        None => Ok(()),
    }
}

/// Connects, again and again: the other side may be starting.
async fn connect<T>(connect: impl AsyncFn() -> Result<T, SeamError>) -> Result<T, String> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match connect().await {
            Ok(connected) => return Ok(connected),
            Err(why) if tokio::time::Instant::now() > deadline => return Err(why.0),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn pull(source: &mut impl Source, count: usize) -> Result<Vec<BridgeArrival>, String> {
    let mut pulled = Vec::new();
    while pulled.len() < count {
        let more = tokio::time::timeout(PATIENCE, source.pull(count - pulled.len())).await;
        let more = more.map_err(|_| format!("{} of {count} messages came", pulled.len()))?;
        pulled.append(&mut more.map_err(|why| why.0)?);
    }
    // More than there are would be repeated ones.
    let more = tokio::time::timeout(Duration::from_millis(300), source.pull(1)).await;
    if let Ok(Ok(more)) = more {
        pulled.extend(more);
    }
    Ok(pulled)
}

fn body(arrival: &BridgeArrival) -> String {
    match &arrival.intent {
        Ok(Intent::Enqueue(enqueue)) => String::from_utf8_lossy(&enqueue.body).into_owned(),
        other => format!("{other:?}"),
    }
}

/// Messages with these bodies, granted by a store of their own.
async fn grants(bodies: &[String]) -> Result<Vec<Grant>, String> {
    let wheel = Duewheel::builder().in_memory().open().await.map_err(|why| why.to_string())?;
    let queue = wheel.queue("conformance");
    for body in bodies {
        let body = bytes::Bytes::from(body.clone());
        queue.body(body).enqueue().await.map_err(|why| why.to_string())?;
    }
    let max = Policy::default().max_reserve.min(bodies.len());
    let name = QueueName::new("conformance").map_err(|bad| bad.to_string())?;
    let reserve = Reserve { max, ..Reserve::new(name) };
    let granted = wheel.client().reserve(reserve).await.map_err(|why| why.to_string())?;
    match granted {
        Reserved::Grants(grants) if grants.len() == bodies.len() => Ok(grants),
        other => Err(format!("{other:?}")),
    }
}
