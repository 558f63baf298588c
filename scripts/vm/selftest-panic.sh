#!/bin/sh
#: about a guest whose kernel panics is told apart from one that hangs or ends
#: expect a panic

echo c >/proc/sysrq-trigger
