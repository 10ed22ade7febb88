//! Other sides for the conformance suite: RabbitMQ, and one in memory that can be made to err.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use duewheel::Policy;
use duewheel::core::engine::{Enqueue, Grant};
use duewheel::core::name::QueueName;
use duewheel_bridge::conformance::OtherSide;
use duewheel_bridge::rabbitmq::RabbitConnector;
use duewheel_bridge::{
    ArrivalVerdict, BridgeArrival, BridgeConnector, Intent, SeamError, SendFate, Sink, Source,
};
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use tokio::sync::mpsc::UnboundedSender;

use crate::broker::{Broker, drain, lay_out};

/// What a side in memory does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    None,
    /// The source confirms messages as it pulls them.
    ConfirmsEarly,
    /// The source confirms with one message all that were pulled before it.
    ConfirmsOthers,
    /// The sink says nothing about the last message of a batch.
    Forgets,
    /// The sink says that a message was sent before the other side has kept it.
    SaysEarly,
    /// The first source panics.
    Panics,
    /// The sink sends nothing, and says nothing.
    Hangs,
}

#[derive(Debug, Default)]
struct Queues {
    ready: VecDeque<(u64, String)>,
    unconfirmed: Vec<(u64, String)>,
    arrived: Vec<String>,
    /// Arrived and not yet durable.
    arriving: Vec<String>,
    /// Each crash ends connections.
    reign: u64,
    marks: u64,
}

/// A queue and a heap in memory.
#[derive(Clone, Debug)]
pub struct MemoryWorld {
    queues: Arc<Mutex<Queues>>,
    error: Error,
}

impl MemoryWorld {
    pub fn new(error: Error) -> Self {
        MemoryWorld { queues: Arc::default(), error }
    }

    fn reign(&self) -> u64 {
        self.queues.lock().unwrap().reign
    }
}

pub struct MemoryEnd {
    world: MemoryWorld,
    reign: u64,
}

impl MemoryEnd {
    fn check(&self) -> Result<(), SeamError> {
        match self.world.reign() == self.reign {
            true => Ok(()),
            false => Err(SeamError("gone".into())),
        }
    }
}

impl MemoryEnd {
    fn take(&self, max: usize) -> Vec<(u64, String)> {
        let mut queues = self.world.queues.lock().unwrap();
        let n = max.min(queues.ready.len());
        let taken: Vec<(u64, String)> = queues.ready.drain(..n).collect();
        if self.world.error != Error::ConfirmsEarly {
            queues.unconfirmed.extend(taken.iter().cloned());
        }
        taken
    }
}

impl BridgeConnector for MemoryWorld {
    type Source = MemoryEnd;
    type Sink = MemoryEnd;

    async fn source(&self) -> Result<MemoryEnd, SeamError> {
        if self.error == Error::Panics && self.reign() == 0 {
            self.queues.lock().unwrap().reign += 1;
            panic!("a bug of the source");
        }
        Ok(MemoryEnd { world: self.clone(), reign: self.reign() })
    }

    async fn sink(&self) -> Result<MemoryEnd, SeamError> {
        Ok(MemoryEnd { world: self.clone(), reign: self.reign() })
    }
}

impl Source for MemoryEnd {
    async fn pull(&mut self, max: usize) -> Result<Vec<BridgeArrival>, SeamError> {
        loop {
            self.check()?;
            let taken = self.take(max);
            if !taken.is_empty() {
                let arrival = |(mark, body): (u64, String)| {
                    let enqueue = Enqueue::new(QueueName::new("q").unwrap(), body);
                    BridgeArrival {
                        mark,
                        intent: Ok(Intent::Enqueue(Box::new(enqueue))),
                        is_redelivered: false,
                    }
                };
                return Ok(taken.into_iter().map(arrival).collect());
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn confirm(&mut self, verdicts: Vec<(u64, ArrivalVerdict)>) -> Result<(), SeamError> {
        self.check()?;
        let last = verdicts.iter().map(|(mark, _)| *mark).max().unwrap_or(0);
        let others = self.world.error == Error::ConfirmsOthers;
        let confirmed = |mark: u64| verdicts.iter().any(|(of, _)| *of == mark) || others && mark < last;
        self.world.queues.lock().unwrap().unconfirmed.retain(|(mark, _)| !confirmed(*mark));
        Ok(())
    }
}

impl Sink for MemoryEnd {
    async fn send(
        &mut self,
        batch: &[Grant],
        heard: &UnboundedSender<(usize, SendFate)>,
    ) -> Result<(), SeamError> {
        if self.world.error == Error::Hangs {
            std::future::pending::<()>().await;
        }
        for (n, grant) in batch.iter().enumerate() {
            self.check()?;
            let body = String::from_utf8(grant.message.body.to_vec()).unwrap();
            let error = self.world.error;
            if error == Error::SaysEarly {
                self.world.queues.lock().unwrap().arriving.push(body);
                drop(heard.send((n, SendFate::Sent)));
            } else {
                self.world.queues.lock().unwrap().arrived.push(body);
                if error != Error::Forgets || n + 1 < batch.len() {
                    drop(heard.send((n, SendFate::Sent)));
                }
            }
            tokio::task::yield_now().await;
        }
        let mut queues = self.world.queues.lock().unwrap();
        let kept: Vec<String> = queues.arriving.drain(..).collect();
        queues.arrived.extend(kept);
        Ok(())
    }
}

impl OtherSide for MemoryWorld {
    type Connector = MemoryWorld;

    fn connector(&self) -> &MemoryWorld {
        self
    }

    async fn offer(&mut self, bodies: &[String]) {
        let mut queues = self.queues.lock().unwrap();
        for body in bodies {
            queues.marks += 1;
            let mark = queues.marks;
            queues.ready.push_back((mark, body.clone()));
        }
    }

    async fn kill(&mut self) {
        // In the middle of a batch.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        let mut queues = self.queues.lock().unwrap();
        queues.reign += 1;
        queues.arriving.clear();
        let back: Vec<_> = queues.unconfirmed.drain(..).collect();
        queues.ready.extend(back);
    }

    async fn arrived(&mut self) -> Vec<String> {
        self.queues.lock().unwrap().arrived.clone()
    }
}

/// A real broker.
pub struct RabbitWorld {
    broker: Broker,
    connector: RabbitConnector,
}

impl RabbitWorld {
    pub async fn new() -> Self {
        let broker = Broker::start();
        let settings = broker.settings();
        let connector = RabbitConnector::new(&settings, &Policy::default()).unwrap();
        // It declares what the bridge needs.
        drop(connector.sink().await.unwrap());
        let (_connection, channel) = broker.connect().await;
        lay_out(&channel, &settings, "jobs", "conformance").await;
        broker.remembers(&settings.source()).await;
        RabbitWorld { broker, connector }
    }
}

impl OtherSide for RabbitWorld {
    type Connector = RabbitConnector;

    fn connector(&self) -> &RabbitConnector {
        &self.connector
    }

    async fn offer(&mut self, bodies: &[String]) {
        let (_connection, channel) = self.broker.connect().await;
        let properties = BasicProperties::default().with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        for body in bodies {
            let publishing = channel.basic_publish(
                "delayed".into(),
                "k".into(),
                options,
                body.as_bytes(),
                properties.clone(),
            );
            assert!(publishing.await.unwrap().await.unwrap().is_ack());
        }
    }

    async fn kill(&mut self) {
        self.broker.kill();
        self.broker.run();
    }

    async fn arrived(&mut self) -> Vec<String> {
        let (_connection, channel) = self.broker.connect().await;
        let all = drain(&channel, "jobs").await;
        all.into_iter().map(|delivery| String::from_utf8(delivery.data).unwrap()).collect()
    }
}
