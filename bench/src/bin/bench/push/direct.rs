//! The same client without a queue: as many requests at a time as the target allows, one after the other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use duewheel_delivery::{NetworkSettings, PushClient, PushRequest, PushTarget, PushVerdict, TargetSettings};

pub(crate) fn run(address: SocketAddr, requests: u64, concurrency: u32) -> io::Result<()> {
    let settings = TargetSettings {
        networks: Some(NetworkSettings::One("127.0.0.1/32".into())),
        concurrency: Some(concurrency),
        ..TargetSettings::new(format!("http://{address}/direct"))
    };
    let client = PushClient::new(Arc::new(PushTarget::new(&settings).map_err(io::Error::other)?));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let left = Arc::new(AtomicU64::new(requests));
    runtime.block_on(async {
        let mut senders = tokio::task::JoinSet::new();
        for _ in 0..concurrency {
            senders.spawn(send(client.clone(), left.clone()));
        }
        while let Some(ended) = senders.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    })
}

async fn send(client: PushClient, left: Arc<AtomicU64>) -> io::Result<()> {
    let next = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    while let Ok(number) = next() {
        let request = PushRequest {
            webhook_id: format!("dw_bench_{number}_1"),
            now: SystemTime::now(),
            queue: "direct".into(),
            key: None,
            attempt: 1,
            due_at: SystemTime::now(),
            headers: Vec::new(),
            body: Bytes::from_static(&[b'.'; 100]),
            span: None,
        };
        let outcome = client.deliver(&request).await;
        if outcome.verdict != PushVerdict::Delivered {
            return Err(io::Error::other(outcome.class.to_string()));
        }
    }
    Ok(())
}
