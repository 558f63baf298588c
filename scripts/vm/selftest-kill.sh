#!/bin/sh
#: about a guest takes the power from the other and goes on; nobody waits for the dead one
#: hosts a b
#: expect a exit 1
#: expect b killed

barrier up
case $HOST in
    a)
        kill_host b
        barrier down
        ;;
    b) while :; do :; done ;;
esac
