//! Lines of JSON.

use std::io::Write;
use std::sync::Mutex;

use semel_workers::sinks::StdoutSink;

use super::*;

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn each_message_is_a_line_of_json_in_order() {
    // G-41, G-43
    let page = Page::default();
    let sink = StdoutSink::to(page.clone());
    let mut messages: Vec<Message> = (0..3).map(|n| message("orders", "a", format!("{n}"))).collect();
    messages.push(Message { payload: vec![0xff, 0].into(), ..message("orders", "b", "") });
    let parcels = parcels(&sink, 1, &messages);
    let receipts = publish(&mut *line(&sink, 1).await, &parcels).await;
    assert_eq!(receipts, vec![Receipt::Landed; 4]);
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, message) in lines.iter().zip(&messages) {
        assert_eq!(line["id"], message.id.to_string());
        assert_eq!(line["headers"]["ce-id"], message.id.to_string());
    }
    assert_eq!(lines[2]["payload"], "2");
    assert_eq!(lines[3]["payload_base64"], "/wA=");
}

/// An output that is gone.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_output_that_takes_no_lines_is_down() {
    let sink = StdoutSink::to(Gone);
    let parcels = parcels(&sink, 1, &[message("orders", "a", "0")]);
    let receipts = publish(&mut *line(&sink, 1).await, &parcels).await;
    assert!(matches!(&receipts[..], [Receipt::Down(_)]), "{receipts:?}");
}
