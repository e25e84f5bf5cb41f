//go:build !unix

package main

import "syscall"

// ownGroup keeps the terminal's signals from a child, where that can be said.
func ownGroup() *syscall.SysProcAttr { return nil }
