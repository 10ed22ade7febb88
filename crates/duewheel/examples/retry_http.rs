//! Makes a request to another service again until it succeeds, later each time: `cargo run --example retry_http`.
//!
//! The other service is in this example, too, and fails twice. The example keeps its messages in memory and moves a
//! clock of its own; a service opens a folder, `Duewheel::open("data")`, and lets time pass by itself.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Duration;

use duewheel::{DeadLetter, Duewheel, HOUR, HandlerResult, Message, QueueSettings, SECOND, VirtualClock};

/// Delivers one message to a service that fails twice; returns the number of requests that it got.
pub(crate) async fn run() -> Result<usize, Box<dyn Error + Send + Sync>> {
    let service = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/hook", service.local_addr()?);
    let requests = std::thread::spawn(move || serve(&service, &[503, 503, 200]));

    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await?;
    let queue = wheel.queue("hooks");
    queue.configure(QueueSettings::default().backoff(5 * SECOND, HOUR)).await?;
    // Each run has a thread of its own, so the request may block.
    queue.handler_blocking(move |message| post(&url, &message))?;
    queue.message(&serde_json::json!({"order": 42, "paid": true})).enqueue().await?;

    while !requests.is_finished() {
        wheel.idle().await?;
        clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    wheel.idle().await?;
    wheel.shutdown(10 * SECOND).await?;
    Ok(requests.join().map_err(|_| "the service panicked")??)
}

/// `Ok` acks the message, an error makes it come again after the backoff, and a `DeadLetter` ends the attempts.
fn post(url: &str, message: &Message) -> HandlerResult {
    let request = ureq::post(url).header("content-type", "application/json");
    // An answer that is no success is judged here, and not an error of the client.
    let request = request.config().http_status_as_error(false).timeout_global(Some(10 * SECOND)).build();
    let status = request.send(message.body().as_ref())?.status();
    println!("attempt {}: {status}", message.attempt());
    match status.as_u16() {
        200..=299 => Ok(()),
        // The service understands the request and refuses it: more attempts do not help.
        400 | 404 | 410 | 422 => Err(DeadLetter::new(format!("{status}")).into()),
        _ => Err(format!("{status}").into()),
    }
}

/// The other service: it gives these answers, one to each request, and counts the requests.
fn serve(service: &TcpListener, answers: &[u16]) -> std::io::Result<usize> {
    for status in answers {
        let (mut stream, _) = service.accept()?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        // The body is short, and comes with the headers.
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        write!(stream, "HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")?;
    }
    Ok(answers.len())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let requests = run().await?;
    println!("delivered with request {requests}");
    Ok(())
}
