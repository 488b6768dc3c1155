-- A step must see what was committed before it got its lane's lock, whatever the role's default is.
BEGIN ISOLATION LEVEL READ COMMITTED
