//! What can be wrong with a service: a word that does not change, and what to do about it.

#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    pub(super) word: &'static str,
    pub(super) advice: &'static str,
}

macro_rules! causes {
    ($($name:ident $word:literal $advice:literal)*) => {
        $(pub(super) const $name: Cause = Cause { word: $word, advice: $advice };)*

        #[cfg(test)]
        pub(super) const ALL: &[Cause] = &[$($name),*];
    };
}

causes! {
    NOT_IDEMPOTENT "not-idempotent"
        "The key is not looked at, or its answer is not stored. Store the answer under the key before it is \
         sent, and look there first."
    NOT_ATOMIC "not-atomic"
        "Looking for the key and taking it are two steps, and both requests looked first. Take it in one: a \
         unique index and an insert that may fail, or a lock that is held until the answer is stored."
    LOCK_LAPSES "lock-lapses"
        "The claim of a key ended while its attempt still ran, and a retry ran beside it. Renew the claim for as \
         long as the attempt runs, and let the store refuse whoever lost it."
    ANSWERS_DIFFER "answers-differ"
        "Duplicates of one request got different answers, so more than one of them ran, or an answer is made \
         anew each time. Store one answer and give it to all."
    REPLAY_ALTERED "replay-altered"
        "Store status, headers and body of the first answer as they were sent, and send those."
    EFFECT_LOST "effect-lost"
        "A success was reported and nothing happened. Report success only after the effect is stored."
    NO_MARKER "no-marker"
        "Mark replays with the header the contract names, so that clients can tell."
    FALSE_MARKER "false-marker"
        "Only replays carry the marker. The first answer must not."
    ERROR_NOT_KEPT "error-not-kept"
        "An error that came after the work began is an answer too: store it like any other, or the retry runs."
    ERROR_RERUNS "error-reruns"
        "A request was answered with an error and had its effect, and its retry ran again. An error does not say \
         that nothing happened: keep it, or free the key only where that is certain."
    LARGE_RERUNS "large-reruns"
        "What is large is not kept, and its retry runs again. Refuse what is too large before it runs, or keep at \
         least that it happened."
    SECRET_REPLAYED "secret-replayed"
        "Do not store headers such as Set-Cookie with the answer: a replay would hand one client's session to \
         whoever holds the key."
    NO_FINGERPRINT "no-fingerprint"
        "Keep a digest of the request with the key, and refuse the key for any other request."
    KEYS_COLLAPSED "keys-collapsed"
        "Requests are deduplicated by what they contain. Two keys are two intents, also with equal bodies."
    WRONG_STATUS "wrong-status"
        "Clients decide by the status whether to retry. Answer what the contract promises, or change the profile."
    FAILS_IN_RACE "fails-in-race"
        "A duplicate that loses a race is an everyday case: wait for the winner's answer, or say that it is \
         being worked on. A unique-key violation must not surface as an error."
    LOST_ANSWER_RERUNS "lost-answer-reruns"
        "The client went away, and its retry ran again. Store the answer before it is sent, and let the work \
         end when the connection breaks."
    STUCK "stuck"
        "A retry never gets past the first attempt. Give the claim of a key a deadline, and end it when the \
         attempt ends, however it does."
    RETRY_REFUSED "retry-refused"
        "The retry of a request that happened must get its answer."
    NO_RETRY_AFTER "no-retry-after"
        "Say with Retry-After when to come back, or clients will hammer."
    NOT_A_PROBLEM "not-a-problem"
        "Refusals are application/problem+json with type, title and status (RFC 9457)."
    KEY_NOT_CHECKED "key-not-checked"
        "Check the key before anything runs, and refuse what is not one: else two clients mean different \
         keys and get one, or none."
    KEY_REFUSED "key-refused"
        "Take every key the contract allows."
    QUOTES_COUNT "quotes-count"
        "The key is a structured-field string: \"abc\" and abc are the same key. Take the quotes off."
    TENANT_LEAK "tenant-leak"
        "The answer of one tenant was shown to another. Make the tenant part of what a key is looked up by."
    SHARED_SCOPE "shared-scope"
        "Tenants, routes or methods share one space of keys. Make them part of what a key is looked up by."
    NOT_CANONICAL "not-canonical"
        "Compare what the JSON says, not its bytes: clients do not keep member order and spacing over a retry."
    LOSSY "lossy"
        "Bodies are compared after a reader has altered them. Compare numbers by their digits, and members \
         with their repeats."
    FORGETS_EARLY "forgets-early"
        "The key was forgotten while clients still retry. Remember it for longer than the last retry can take."
    NEVER_EXPIRES "never-expires"
        "After its time the key is still taken. Let expired keys count as absent."
    CRASH_RERUNS "crash-reruns"
        "After a crash the retry ran again. Write down that the key is taken before the effect, and if nobody \
         can tell whether it happened, say so instead of running."
    NOT_DURABLE "not-durable"
        "An answer was given and then forgotten. Store it durably before it is sent."
    DISHONEST "dishonest"
        "Success was reported and there is no effect. If nobody can tell what happened, say so."
    RUNS_WITHOUT_STORE "runs-without-store"
        "Without its store the service cannot know what happened before. Refuse, and say when to come back."
    STUCK_AFTER_OUTAGE "stuck-after-outage"
        "What was refused during the outage must work after it: undo claims whose answer never came."
    TIME_OUT_STORED "time-out-stored"
        "A time-out was stored as the answer, and the effect came after it. A time-out says nothing about the \
         effect: keep the key in flight until the attempt has ended, or say that nobody knows."
    CAME_LATER "came-later"
        "All was well when the answers came, and later there was an effect too many. Whoever does the work \
         behind the answer (a queue, a worker) must look at the key too."
    LATE_EFFECT_TWICE "late-effect-twice"
        "After a time-out the first attempt may still be running. Its retry must not run beside it."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_word_of_its_own_and_a_sentence() {
        for (at, cause) in ALL.iter().enumerate() {
            assert!(cause.word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{cause:?}");
            assert!(cause.advice.ends_with('.') && !cause.advice.contains("  "), "{cause:?}");
            assert!(ALL[..at].iter().all(|other| other.word != cause.word), "{cause:?}");
        }
    }
}
