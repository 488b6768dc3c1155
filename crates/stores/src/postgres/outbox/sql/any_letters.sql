-- Whether anything of a lane is set aside.
SELECT EXISTS (SELECT FROM semel_outbox_aside WHERE lane = $1) AS any_letters
