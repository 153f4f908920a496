// Program provisioner gives the test cluster its default StorageClass: for each
// claim it makes a directory on the node and a PersistentVolume of type `local`.
//
// A `local` volume, unlike a hostPath one, honours a pod's fsGroup. There is no
// quota: the claim's size is recorded and may grow, it is not enforced.
// It runs as a process on the one node, so no helper pod has to start first.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// volumeName is the shape of the names that the library gives to volumes. Only
// such a name is ever joined to the folder, so no path can leave it.
var volumeName = regexp.MustCompile(`^pvc-[0-9a-f-]{36}$`)

// directories implements controller.Provisioner over one folder of one node.
type directories struct {
	folder string
	node   string
}

// path is the directory that belongs to a volume.
func (d directories) path(name string) (string, error) {
	if !volumeName.MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a volume made by this provisioner", name)
	}
	return filepath.Join(d.folder, name), nil
}

// Provision makes the directory and describes the volume.
func (d directories) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if options.SelectedNodeName != "" && options.SelectedNodeName != d.node {
		return nil, controller.ProvisioningReschedule, fmt.Errorf("volumes are made on node %s only, the pod was placed on %s", d.node, options.SelectedNodeName)
	}
	path, err := d.path(options.PVName)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	// 0755 of root, as the root of a freshly made file system: a pod that is
	// not root can write only when it names an fsGroup.
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return nil, controller.ProvisioningFinished, err
	}
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			VolumeMode:                    &mode,
			MountOptions:                  options.StorageClass.MountOptions,
			Capacity: v1.ResourceList{
				v1.ResourceStorage: options.PVC.Spec.Resources.Requests[v1.ResourceStorage],
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				Local: &v1.LocalVolumeSource{Path: path},
			},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{
						Key:      v1.LabelHostname,
						Operator: v1.NodeSelectorOpIn,
						Values:   []string{d.node},
					}},
				}},
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete removes the directory of a released volume and all that is in it.
func (d directories) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	path, err := d.path(volume.Name)
	if err != nil {
		return &controller.IgnoredError{Reason: err.Error()}
	}
	return os.RemoveAll(path)
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig to reach the API server with")
	name := flag.String("name", "agent-workspace-operator.test/local", "the provisioner's name in the StorageClass")
	node := flag.String("node", "", "the name of this node")
	folder := flag.String("folder", "", "the folder that holds one directory per volume")
	flag.Parse()
	if *node == "" || !filepath.IsAbs(*folder) {
		return fmt.Errorf("--node and an absolute --folder are needed")
	}
	if err := os.MkdirAll(*folder, 0o711); err != nil {
		return err
	}
	configuration, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	// 300 claims at once are an ordinary load test; client-go's default of
	// 5 requests a second would make the last one wait for minutes.
	configuration.QPS, configuration.Burst = 1000, 2000
	client, err := kubernetes.NewForConfig(configuration)
	if err != nil {
		return err
	}

	shared := informers.NewSharedInformerFactory(client, 15*time.Minute)
	claims := shared.Core().V1().PersistentVolumeClaims().Informer()
	if err := growClaims(ctx, client, *name, claims); err != nil {
		return err
	}
	provisioner := controller.NewProvisionController(ctx, client, *name,
		directories{folder: *folder, node: *node},
		controller.LeaderElection(false),
		controller.Threadiness(8),
		controller.ClaimsInformer(claims),
		// Conflicts with the scheduler and the volume controller are
		// ordinary; a claim must not wait for the default's 15 s after one.
		controller.CreateProvisionedPVBackoff(wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 8}),
	)
	shared.Start(ctx.Done())
	provisioner.Run(ctx)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "provisioner:", err)
		os.Exit(1)
	}
}
