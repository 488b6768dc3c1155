//! A batch job that is safe to rerun: every line has a key made of durable data, so a second run
//! pays only what the first one did not. Reads `invoice cents` lines from standard input.

use std::sync::Arc;

use semel::{Once, Outcome, Policy, Scope, SqliteStore, runtime::Tokio};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let once = Once::new(Arc::new(SqliteStore::open("payroll.db")?), Arc::new(Tokio::new()));
    let prints = once.fingerprinter().await?;
    let policy = Policy::default();
    for line in std::io::stdin().lines() {
        let line = line?;
        let Some((invoice, cents)) = line.split_once(' ') else { continue };
        let (invoice, cents): (String, u64) = (invoice.into(), cents.trim().parse()?);
        let fingerprint = prints.of_bytes(line.as_bytes());
        let key = invoice.parse()?;
        let paid = once
            .run(Scope::shared("payroll", "payout")?, key, fingerprint, &policy, async move |_op| {
                println!("{invoice}: sending {cents} to the bank");
                Outcome::text("sent")
            })
            .await;
        match paid {
            Ok(answer) => println!("{line}: {:?}", answer.origin),
            Err(refusal) => println!("{line}: NOT PAID: {refusal}"),
        }
    }
    Ok(())
}
