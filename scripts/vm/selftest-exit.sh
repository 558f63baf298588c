#!/bin/sh
#: about two guests meet twice at a barrier and end, each with its own status and file
#: hosts a b
#: expect b exit 7

barrier first
barrier second
# Large enough to be cut off, if an end could overtake what was written before it.
head -c 8388608 /dev/urandom >/out/noise
case $HOST in
    a) ping -c 1 -W 10 "$PEER" ;;
    b) ping -c 1 -W 10 "$PEER6" ;;
esac
# Who has been answered may not leave before the other has been answered as well.
barrier answered
case $HOST in
    a) exit 0 ;;
    b) exit 7 ;;
esac
