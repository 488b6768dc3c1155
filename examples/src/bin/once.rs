//! One payment, however often this program is started. Takes the amount in cents.

use std::sync::Arc;

use semel::{Once, Outcome, Policy, Refusal, Scope, SqliteStore, runtime::Tokio};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let amount: u64 = std::env::args().nth(1).map_or(Ok(2000), |text| text.parse())?;
    let request = format!(r#"{{"amount": {amount}}}"#);

    let store = Arc::new(SqliteStore::open("semel.db")?);
    let once = Once::new(store, Arc::new(Tokio::new()));
    let fingerprint = once.fingerprinter().await?.of_json(request.as_bytes());
    let scope = Scope::new("shop", "customer-42", "charge")?;
    let answer = once
        .run(scope, "order-1042-payment".parse()?, fingerprint, &Policy::default(), async move |op| {
            println!("charging {amount} with provider key {}", op.derive("charge", 1));
            Outcome::text(format!("charged {amount}"))
        })
        .await;
    match answer {
        Ok(answer) => println!("{:?}: {:?}", answer.origin, answer.outcome.body_bytes()),
        Err(Refusal::Mismatch(changes)) => {
            println!("refused: this key was used before, with another {:?}", changes.changed)
        }
        Err(refusal) => println!("refused: {refusal}"),
    }
    Ok(())
}
