//! `GET /v1/cluster`: the nodes, and who owns what, as this node sees it.

use axum::http::StatusCode;

use super::call::Call;
use super::{Answer, object};
use crate::error::{ErrorCode, Problem};

pub(crate) async fn cluster(call: Call) -> Answer {
    let Some(view) = call.app.wheel.cluster() else {
        let why = "this server is no node of a cluster; --store redis://… makes one";
        return Err(Problem::new(ErrorCode::NotFound, why));
    };
    Ok(object(StatusCode::OK, |out| {
        out.text("node", &view.me.name);
        out.number("age_ms", u64::try_from(view.age.as_millis()).unwrap_or(u64::MAX));
        out.open_list("nodes");
        for node in &view.nodes {
            out.open();
            out.text("name", &node.name);
            out.text("advertise", &node.advertise);
            let owned = view.shards.iter().filter(|shard| shard.owner.as_ref() == Some(&node.name));
            out.number("shards", owned.count() as u64);
            out.close();
        }
        out.close_list();
        let lost = view.shards.iter().filter(|shard| shard.owner.is_none()).count();
        out.number("shards_without_owner", lost as u64);
        out.open_list("shards");
        for shard in &view.shards {
            out.open();
            out.number("shard", u64::from(shard.shard.0));
            out.text_or_null("owner", shard.owner.as_deref());
            out.text_or_null("wanted", shard.wanted.as_deref());
            out.number_or_null("epoch", shard.epoch.map(|epoch| u64::from(epoch.0)));
            out.plain("here", shard.here.as_str());
            out.close();
        }
        out.close_list();
    }))
}
