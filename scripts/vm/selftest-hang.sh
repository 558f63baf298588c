#!/bin/sh
#: about a guest that hangs is ended at the limit, and is told apart from one that ends
#: hosts a b
#: expect a hang
#: limit 5

barrier up
case $HOST in
    a) while :; do :; done ;;
    b) exit 0 ;;
esac
