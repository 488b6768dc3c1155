//! What Kafka's client says, in words that may be shown.

use rdkafka::error::KafkaError;

/// An error without the values of settings: one may be a password.
pub(crate) fn words(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, why, name, value) if why.contains(value.as_str()) => {
            format!("Kafka's client does not take the value of the setting `{name}`")
        }
        KafkaError::ClientConfig(_, why, name, _) => format!("the setting `{name}`: {why}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::producer::BaseProducer;

    use super::*;

    fn refused(name: &str, value: &str) -> String {
        match ClientConfig::new().set(name, value).create::<BaseProducer>() {
            Ok(_) => panic!("{name} was taken"),
            Err(error) => words(&error),
        }
    }

    #[test]
    fn a_setting_that_is_refused_is_named_and_its_value_is_not_shown() {
        for (name, value) in
            [("no.such.password", "hunter2"), ("acks", "hunter2"), ("ssl.key.password", "hunter2")]
        {
            let words = refused(name, value);
            assert!(words.contains(name) && !words.contains("hunter2"), "{words}");
        }
    }
}
