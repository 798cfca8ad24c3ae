//! `seqline consumers acknowledge`

use serde_json::json;

use super::*;
use crate::support::{as_admin, run_sql, server_db};

#[tokio::test]
async fn what_was_lost_is_shown_until_somebody_knows() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    assert_eq!(
        consumers(&db, "acknowledge mine").await,
        "consumer mine has lost nothing that is not acknowledged\n"
    );
    as_admin(
        &db,
        "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('mine', 1, 1000), ('mine', 2000, 2000)",
    )
    .await;
    assert_eq!(cells(&db, "list", &["lost"]).await, [["1,001"]]);
    let shown = consumers(&db, "show mine").await;
    let line = "\nlost          1,001 events: seq 2,000; 1 to 1,000 (seqline consumers acknowledge mine)\n";
    assert!(shown.contains(line), "{shown}");
    assert_eq!(
        consumers(&db, "acknowledge mine").await,
        "would acknowledge that consumer mine has lost 1,001 events in 2 ranges: they are not shown any more then. Add --yes to do it\n"
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        json_of(&db, "acknowledge mine --reason known --yes").await,
        json!({"consumer": "mine", "ranges": 2, "events": 1001, "done": true})
    );
    assert_eq!(cells(&db, "list", &["lost"]).await, [["0"]]);
    assert_eq!(
        consumers(&db, "acknowledge mine --yes").await,
        "consumer mine has lost nothing that is not acknowledged\n"
    );
    let before = json!({"lost": [[1, 1000], [2000, 2000]]});
    let row = audit_row("consumer.acknowledge", "mine", (before, json!({})), Some("known"));
    assert_eq!(audited(&db).await, [row]);
}
