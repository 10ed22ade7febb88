//! The examples do what they say.

#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/campaign.rs"]
mod campaign;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/order_timeout.rs"]
mod order_timeout;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/retry_http.rs"]
mod retry_http;

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_not_paid_is_closed_and_no_other() {
    assert_eq!(order_timeout::run().await.unwrap(), [43]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_is_spread_over_its_minutes_and_not_early() {
    let minutes = campaign::run().await.unwrap();
    assert_eq!((minutes[0], minutes.iter().sum::<usize>(), minutes.len()), (0, 1_000, 11), "{minutes:?}");
    // A hundred in each on average; the draw is the same in each run.
    assert!(minutes[1..].iter().all(|sent| (60..=140).contains(sent)), "{minutes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_made_again_until_it_succeeds() {
    assert_eq!(retry_http::run().await.unwrap(), 3);
}
