-- The last token that wrote to a resource, and the newest that was given; the resource stays locked.
SELECT last, newest FROM semel_fence_look($1, $2)
